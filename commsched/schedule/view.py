"""One rank's view of a schedule: its sends and its receives, in order."""

from typing import NamedTuple

from commsched.arrays import Ints
from commsched.schedule.rounds import Schedule


class Move(NamedTuple):
    """One message of one rank: blocks [first, stop), to or from `peer`."""

    round: int
    peer: int
    first: int
    stop: int
    add: bool  # the receiver adds


def moves_of(schedule: Schedule, rank: int) -> tuple[list[Move], list[Move]]:
    """List the sends and the receives of `rank`, each in the order of the rounds.

    The send of a round carries the rank's data from before the receive of that round. Costs one
    search per new pattern of ranks, and a few look-ups per round.
    """
    assert 0 <= rank < schedule.ranks
    sends: list[Move] = []
    receives: list[Move] = []
    src = dst = None
    sending = receiving = -1
    for index, round_ in enumerate(schedule.rounds()):
        if round_.src is not src:
            src, sending = round_.src, _place(round_.src, rank)
        if round_.dst is not dst:
            dst, receiving = round_.dst, _place(round_.dst, rank)
        for place, peers, moves in ((sending, dst, sends), (receiving, src, receives)):
            if place >= 0:
                first, stop = int(round_.first[place]), int(round_.stop[place])
                moves.append(Move(index, int(peers[place]), first, stop, round_.add))
    return sends, receives


def _place(side: Ints, rank: int) -> int:
    """Find the move of `rank` on one side of a round; -1 if there is none."""
    if not len(side):
        return -1
    place = int((side == rank).argmax())
    return place if side[place] == rank else -1
