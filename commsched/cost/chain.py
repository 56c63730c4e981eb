"""The messages of an exchange: those in its longest chain, those of each rank, and their cost."""

from functools import lru_cache

import numpy as np

from commsched.arrays import Floats
from commsched.exchange.pair import route
from commsched.exchange.payload import Payload
from commsched.machine.library import algorithm_of
from commsched.machine.model import Group, Machine
from commsched.schedule.rounds import Schedule


def messages_in_turn(schedule: Schedule, payload: Payload, machine: Machine, group: Group) -> int:
    """Return the longest chain of messages in an exchange, each sent after the one before arrives.

    For a library's all-reduce, the algorithm that the library takes counts.
    """
    return 0 if group.size == 1 else _longest(_route(schedule, payload, machine, group))


def seconds_of_waking(
    schedule: Schedule, payload: Payload, machine: Machine, group: Group
) -> float:
    """Return how much longer an exchange lasts if its ranks compute on cores all the while, s.

    Each message of the chain waits for a core of its receiver. If the receiver does not know the
    message's size, the interpreter must probe for it, and the message also waits for that.
    """
    known = payload.known and not schedule.library
    each = machine.wakeup + (0.0 if known else machine.interpreter)
    return each and each * messages_in_turn(schedule, payload, machine, group)


def messages_of_a_rank(
    schedule: Schedule, payload: Payload, machine: Machine, group: Group
) -> float:
    """Return how many messages a rank sends and receives in an exchange, the mean of the ranks.

    Of a library's all-reduce it is that of the algorithm that the library takes.
    """
    return 0.0 if group.size == 1 else _mean(_route(schedule, payload, machine, group))


def handling_seconds(wanted: Floats | float, lasts: Floats | float, machine: Machine) -> Floats:
    """Return the processor time that a rank's messages take in exchanges of `lasts` s: (n,) s.

    wanted: s, if nothing limits it. A thread has at most its rank's part of the cores, and once all
    messages are there it polls no more.
    """
    found: Floats = np.minimum(wanted, machine.alone * lasts)
    return found


def _route(schedule: Schedule, payload: Payload, machine: Machine, group: Group) -> Schedule:
    """Return the schedule of an exchange, or of what a library takes for it."""
    if not schedule.library:
        return schedule
    assert payload.spec is not None
    return route(algorithm_of(machine, group, 4.0 * payload.spec.numel).collective, group)


@lru_cache(maxsize=1024)
def _mean(schedule: Schedule) -> float:
    """Count the ends of all messages, and share them among the ranks."""
    return sum(2.0 * len(rnd.src) for rnd in schedule.rounds()) / schedule.ranks


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
