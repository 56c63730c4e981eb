"""Sizes behind a net's name, such as 64 and 2 in `mlp:64:2`."""

from commsched.coding import parameters as read


def sizes(parameters: list[str], known: dict[str, tuple[int, int]]) -> list[int]:
    """Read a whole number for each known size, name -> (default, most), else take its default."""
    read.at_most(parameters, len(known))
    given = [*parameters, *[""] * (len(known) - len(parameters))]
    return [
        read.whole(word, name, 1, most) if word else default
        for word, (name, (default, most)) in zip(given, known.items(), strict=True)
    ]
