"""What a launch takes of a rank's memory beside its bucket: what it keeps, and packets."""

from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import numpy as np

from commsched.machine import Group
from commsched.methods.base import Choice, Phase
from commsched.methods.table import find_method
from commsched.plan.bucket import BucketSpec
from commsched.schedule import Goal, Schedule

AHEAD = 4  # receives of one exchange that are posted before they are needed
ROUNDS = 64  # of a schedule that are looked at: the largest runs are among its first ones


class Room(NamedTuple):
    """Bytes on one rank; what a codec or MPI needs only while it runs is not in it."""

    kept: float  # from step to step: what was not sent, a momentum, a mask, a start
    waiting: float  # its own packets, from when they are made until they are sent
    received: float  # packets of others, while the exchange is under way


@lru_cache(maxsize=4096)
def room(name: str, spec: BucketSpec, group: Group) -> Room:
    """The room of a bucket's launch among a group, by the name of its method."""
    method = find_method(name)
    found = [_exchange(phase) for phase in method.phases(spec, group)]
    return Room(method.kept(spec), max(own for own, _ in found), max(others for _, others in found))


def _exchange(phase: Phase | Choice) -> tuple[float, float]:
    """Bytes of a rank's own packets and of those that it receives at a time."""
    if isinstance(phase, Choice):
        phase = phase.then(phase.expected)
    schedule, payload = phase.schedule, phase.payload
    if schedule.goal is Goal.ALL_GATHER:
        return payload.packets / schedule.ranks, payload.packets * (1 - 1 / schedule.ranks)
    if schedule.goal is Goal.ALL_TO_ALL:
        each = payload.packets / schedule.ranks
        return each, each
    assert payload.cuts is not None
    bucket = 4.0 * payload.cuts[-1]
    if payload.codec.fixed:
        bucket = float(payload.wire(np.zeros(1, np.int64), np.array([schedule.blocks]), 1)[0])
    return 0.0, bucket * _received(schedule, payload.codec.decode_traffic > 0.0)


@lru_cache(maxsize=256)
def _received(schedule: Schedule, decoded: bool) -> float:
    """Of a bucket that is summed, the share that a rank receives beside it at a time.

    What replaces a block lands in its place, unless it is `decoded` first.
    """
    if schedule.rounds is None:
        return 0.0
    total, most = np.zeros((2, schedule.ranks))
    for round_ in islice(schedule.rounds(), ROUNDS):
        if round_.add or decoded:
            size = (round_.stop - round_.first) / schedule.blocks
            arriving = np.bincount(round_.dst, size, schedule.ranks)
            total, most = total + arriving, np.maximum(most, arriving)
    return float(np.minimum(total, AHEAD * most).max())
