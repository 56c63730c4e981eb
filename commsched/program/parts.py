"""The parts of a launch's operations, which a run performs and a prediction prices.

This is the only list of parts. `run` has an action on a bucket for every part; `simulate` and the
planner have the part's price on a device.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import inf
from typing import NamedTuple

import numpy as np

from commsched.arrays import Floats, Times
from commsched.exchange.method import Choice, Phase
from commsched.exchange.registry import find_method, phases_of
from commsched.machine.model import Device, Machine
from commsched.net.graph import Net
from commsched.plan.model import Plan
from commsched.program.model import Kind, Op

# s for which a woken thread runs at once, before it shares a core with others: the slice of
# Linux on 8 processors and more, 0.7 ms x (1 + log2 8) (kernel/sched/fair.c).
SLICE = 2.8e-3


class Part(NamedTuple):
    """A rank's own work on one bucket."""

    name: str
    seconds: Callable[[Phase, float, Device], float]  # of a phase, values of the bucket, a device


def gather_seconds(numel: float, device: Device) -> float:
    """Return the s to copy `numel` values into their bucket and check for NaN and infinity."""
    return device.fixed_gather + 4.0 * numel * (device.gather or 3 / device.bandwidth)


def mean_seconds(numel: float, device: Device) -> float:
    """Return the seconds to divide `numel` sums in place."""
    return device.fixed_scale + 4.0 * numel * (device.scale or 2 / device.bandwidth)


def put_seconds(numel: float, device: Device) -> float:
    """Return the s to copy `numel` parameters out of their bucket: read once, written once."""
    return 2 * 4.0 * numel / device.bandwidth


def merge_seconds(numel: float, device: Device) -> float:
    """Return the seconds to merge a sum of `numel` parameters: 11 passes of 4 B over memory.

    Copy the parameters (2), scale them (2), add the sum (3), divide (2), copy them back (2).
    """
    return 11 * 4.0 * numel / device.bandwidth


# Copy the worker's gradients or parameters into the bucket; add what earlier launches kept.
GATHER = Part("gather", lambda phase, numel, device: gather_seconds(numel * phase.reads, device))
TAKE = Part("take", lambda phase, numel, device: phase.take_seconds(device))
VOTE = Part("vote", lambda phase, numel, device: phase.vote_seconds(device))  # then exchanged
GIVE = Part("give", lambda phase, numel, device: phase.give_seconds(device))
MEAN = Part("mean", lambda phase, numel, device: mean_seconds(numel * phase.leaves, device))
DELIVER = Part("deliver", lambda phase, numel, device: 0.0)  # show the worker the sum, or mean
LEAVE = Part("leave", lambda phase, numel, device: 0.0)  # show the worker its own values
PUT = Part("put", lambda phase, numel, device: put_seconds(numel, device))  # parameters
MERGE = Part("merge", lambda phase, numel, device: merge_seconds(numel, device))


def operations(phases: Sequence[Phase | Choice]) -> list[tuple[Kind, int]]:
    """List the operations of a launch in order, each with the number of its phase."""
    found: list[tuple[Kind, int]] = []
    for number, phase in enumerate(phases):
        if isinstance(phase, Choice):
            found.append((Kind.DECIDE, number))
        found += [(kind, number) for kind in (Kind.ENCODE, Kind.EXCHANGE, Kind.DECODE)]
    return found


def parts_in(
    kind: Kind,
    number: int,
    phases: Sequence[Phase | Choice],
    *,
    ranks: int,
    mean: bool,
    payload: str = "gradient",
) -> tuple[Part, ...]:
    """List the parts of an operation of phase `number`, in the order in which they are done.

    ranks: the size of the group; mean: whether the plan divides sums by it.
    """
    order = operations(phases)
    found: list[Part] = [GATHER] if (kind, number) == order[0] else []
    found += {
        Kind.ENCODE: [TAKE],
        Kind.DECIDE: [VOTE],
        Kind.DECODE: [GIVE],
        Kind.MERGE: [GIVE, MERGE],
    }.get(kind, [])
    if (kind, number) == order[-1]:
        mean = mean and payload == "gradient"
        if payload == "parameter":
            found.append(PUT)
        else:
            found += [MEAN, DELIVER] if mean and ranks > 1 else [DELIVER]
    return tuple(found)


def parts_of(plan: Plan, op: Op) -> tuple[Part, ...]:
    """List the parts of an operation of a plan, in the order in which they are done."""
    if op.launch < 0:
        return (VOTE,)
    if op.alone:
        return (GATHER, LEAVE)
    launch = plan.launches[op.launch]
    return parts_in(
        op.kind,
        op.phase,
        phases_of(plan, op.launch),
        ranks=plan.group(launch).size,
        mean=plan.mean,
        payload=launch.payload,
    )


@lru_cache(maxsize=8192)
def values_of(plan: Plan, index: int) -> float:
    """Return the float32 numbers that a launch's bucket is: its elements, or those of its lists."""
    launch = plan.launches[index]
    seen = find_method(launch.method).seen(plan.spec(launch), plan.group(launch))
    return seen.all_raw / 4


class CodingTime(NamedTuple):
    """The time of a rank's coding, with or without compute on its node's cores at the same time.

    A price holds while all ranks of the node code at once. Ranks that compute do not code at once:
    a woken thread runs at once for a `slice`, and shares the cores with all others from then on.
    """

    cold: float = 0.0  # s on top of a price, because compute empties the caches
    alone: float = 1.0  # share of a price that a rank takes if no other rank codes
    slice: float = inf  # s

    @classmethod
    def of(cls, machine: Machine, net: Net) -> "CodingTime":
        """Return the coding time of a net on a machine."""
        if not machine.cores:
            return cls()
        if not net.occupies_cores:
            return cls(slice=SLICE / machine.alone)
        return cls(machine.cold / machine.alone, machine.alone, SLICE)

    def lasts(self, price: float) -> float:
        """Return how long an operation lasts, s, whose price is `price` s."""
        if not price:
            return 0.0
        first = (price + self.cold) * self.alone
        return first + max(first - self.slice, 0.0) * (1.0 / self.alone - 1.0)

    def work(self, lasts: Times) -> Times:
        """Return the s of a rank's share of the cores that operations of these lengths take."""
        first = np.minimum(lasts, self.slice)
        found: Times = lasts + first * (1.0 / self.alone - 1.0)
        return found

    def ends(self, lasts: Floats) -> Floats:
        """Return after how many s operations of these lengths end on an otherwise idle rank.

        An operation longer than a slice then waits until the slice was its share of the cores.
        """
        found: Floats = np.where(lasts > self.slice, self.work(lasts), lasts)
        return found


def seconds(parts: Iterable[Part], phase: Phase, numel: float, device: Device) -> float:
    """Price parts on a bucket of `numel` float32 numbers, in seconds without jitter."""
    return sum(part.seconds(phase, numel, device) for part in parts)


HANDOVERS = 3  # per phase: three separate threads encode, exchange and decode


def handover_seconds(machine: Machine, net: Net) -> float:
    """Return the mean until another thread of a rank takes up a ready operation, s."""
    return machine.handover + (machine.handover_computing if net.occupies_cores else 0.0)
