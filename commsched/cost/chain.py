"""How many messages of an exchange wait for each other, one after the other."""

from functools import lru_cache

import numpy as np

from commsched.exchange.pair import route
from commsched.exchange.payload import Payload
from commsched.machine.library import algorithm_of
from commsched.machine.model import Group, Machine
from commsched.schedule.rounds import Schedule


def messages_in_turn(schedule: Schedule, payload: Payload, machine: Machine, group: Group) -> int:
    """Return the length of an exchange's longest chain of messages, each sent once one has come.

    Of a library's all-reduce it is that of the algorithm that the library takes.
    """
    if group.size == 1:
        return 0
    if schedule.library:
        assert payload.spec is not None
        taken = algorithm_of(machine, group, 4.0 * payload.spec.numel)
        schedule = route(taken.collective, group)
    return _longest(schedule)


@lru_cache(maxsize=1024)
def _longest(schedule: Schedule) -> int:
    """Count along the rounds: a rank's messages wait for those that it needs (`Round.waits`)."""
    start = kept = merged = np.zeros(schedule.ranks, np.int64)
    for number, rnd in enumerate(schedule.rounds()):
        held = merged
        if rnd.waits is not None:
            kept = merged if rnd.waits == number else kept
            held = start if rnd.waits == 0 else kept
        come, merged = held[rnd.src] + 1, merged.copy()
        np.maximum.at(merged, rnd.dst, come)
    return int(merged.max(initial=0))
