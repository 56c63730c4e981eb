"""The registries of trainable nets and of their data, by name, and the sizes in a net's name."""

from commsched.coding import parameters as read
from commsched.registry import Registry
from commsched.train.layers.layer import TrainableNet
from commsched.train.samples import Source

NETS: Registry[TrainableNet] = Registry("net to train", "commsched.train.nets")
DATA: Registry[Source] = Registry("data", "commsched.train.data")


def sizes(parameters: list[str], known: dict[str, tuple[int, int, int]]) -> list[int]:
    """Read the sizes behind a net's name, such as 64 and 2 in `mlp:64:2`.

    `known`: name -> (least, default, most); a missing size takes its default.
    """
    read.at_most(parameters, len(known))
    given = [*parameters, *[""] * (len(known) - len(parameters))]
    return [
        read.whole(word, name, least, most) if word else default
        for word, (name, (least, default, most)) in zip(given, known.items(), strict=True)
    ]
