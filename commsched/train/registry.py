"""All nets that can be trained, and all data to train them on, by name; the sizes in a name."""

from commsched.coding import parameters as read
from commsched.registry import Registry
from commsched.train.layers.layer import TrainableNet
from commsched.train.samples import Source

NETS: Registry[TrainableNet] = Registry("net to train", "commsched.train.nets")
DATA: Registry[Source] = Registry("data", "commsched.train.data")


def sizes(parameters: list[str], known: dict[str, tuple[int, int, int]]) -> list[int]:
    """Read the sizes behind a net's name, such as 64 and 2 in `mlp:64:2`.

    Each known size is a whole number, name -> (least, default, most); else it takes its default.
    """
    read.at_most(parameters, len(known))
    given = [*parameters, *[""] * (len(known) - len(parameters))]
    return [
        read.whole(word, name, least, most) if word else default
        for word, (name, (least, default, most)) in zip(given, known.items(), strict=True)
    ]
