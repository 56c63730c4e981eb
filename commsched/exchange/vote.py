"""Votes: a group agrees on a number by an all-gather of 8 B per member."""

from collections.abc import Callable

import numpy as np

from commsched.arrays import Array
from commsched.coding.codec import State
from commsched.coding.registry import CODECS
from commsched.exchange.method import Phase
from commsched.exchange.pair import route
from commsched.exchange.payload import Payload
from commsched.machine.model import Group


def voting(group: Group, vote: Callable[[State], float]) -> Phase:
    """Gather the `vote` of each member's state as "votes", in rank order."""
    schedule = route("all-gather", group)

    def give(state: State, packets: list[Array]) -> None:
        state["votes"] = [float(packet.view(np.float64)[0]) for packet in packets]

    return Phase(
        schedule=schedule,
        payload=Payload(codec=CODECS["dense"], sizes=lambda: np.full(schedule.blocks, 8.0)),
        take=lambda state: np.array([vote(state)], np.float64).view(np.uint8),
        give=give,
    )
