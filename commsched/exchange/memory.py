"""The memory of a launch on a rank in addition to its bucket: unsent values, and packets."""

from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import numpy as np

from commsched.exchange.method import Phase
from commsched.exchange.registry import find_method
from commsched.kernels.hashing import SETS
from commsched.machine.model import Group
from commsched.net.bucket import BucketSpec
from commsched.schedule.rounds import Goal, Schedule

AHEAD = 4  # receives of one exchange that are posted before they are needed
ROUNDS = 64  # only the first rounds of a schedule are searched; they include the largest runs


class LaunchMemory(NamedTuple):
    """Bytes on one rank, without temporary memory of codecs and MPI."""

    kept: float  # kept from step to step: unsent values, momentum, mask, PowerSGD's start
    waiting: float  # the rank's own packets, from their encoding until they are sent
    received: float  # packets of others, while the exchange is under way
    # Index sets (elements and parts of each) that all launches of the plan share.
    sets: frozenset[tuple[int, int]]

    @property
    def alone(self) -> float:
        """Return the bytes that a launch keeps from step to step if it is the only one."""
        return self.kept + sets_bytes(self.sets)


def sets_bytes(sets: frozenset[tuple[int, int]]) -> float:
    """Return the bytes of index sets."""
    return float(SETS * sum(numel for numel, _ in sets))


@lru_cache(maxsize=4096)
def launch_memory(name: str, spec: BucketSpec, group: Group) -> LaunchMemory:
    """Return the memory of a bucket's launch among a group, by the name of its method."""
    method = find_method(name)
    phases = method.expected_phases(spec, group)
    memories = [_exchange(phase) for phase in phases]
    return LaunchMemory(
        kept=method.kept(spec),
        waiting=max(own for own, _ in memories),
        received=max(others for _, others in memories),
        sets=frozenset().union(*(phase.sets | _coded(phase, spec) for phase in phases)),
    )


def _coded(phase: Phase, spec: BucketSpec) -> frozenset[tuple[int, int]]:
    """Return the index sets of the runs that a phase codes, on the rank that codes most."""
    parts, cuts = phase.payload.codec.parts, phase.payload.cuts
    if not parts:
        return frozenset()
    if cuts is None:
        return frozenset({(spec.numel, parts)})
    pairs = np.zeros((2, 0), np.int64)  # rank, elements of a run
    for round_ in islice(phase.schedule.rounds(), ROUNDS):
        numel = cuts[round_.stop] - cuts[round_.first]
        moved = np.stack([np.append(round_.src, round_.dst), np.append(numel, numel)])
        pairs = np.unique(np.concatenate([pairs, moved], axis=1), axis=1)
    if not pairs.size:
        return frozenset()
    most = int(np.bincount(pairs[0], pairs[1]).argmax())
    return frozenset((numel, parts) for numel in pairs[1, pairs[0] == most].tolist())


def _exchange(phase: Phase) -> tuple[float, float]:
    """Return the bytes of a rank's own packets, and of the packets that it receives at a time."""
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
    """Return the share of a summed bucket that a rank receives outside the bucket at a time.

    A replacement is received in place, unless it must be `decoded` first.
    """
    if schedule.library:
        return 0.0
    total, most = np.zeros((2, schedule.ranks))
    for round_ in islice(schedule.rounds(), ROUNDS):
        if round_.add or decoded:
            size = (round_.stop - round_.first) / schedule.blocks
            arriving = np.bincount(round_.dst, size, schedule.ranks)
            total, most = total + arriving, np.maximum(most, arriving)
    return float(np.minimum(total, AHEAD * most).max())
