"""A method as phases: local work, an exchange of a payload, local work."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from commsched.arrays import Array
from commsched.coding.codec import Codec, State
from commsched.exchange.payload import Payload
from commsched.machine.model import Device, Group
from commsched.net.bucket import BucketSpec
from commsched.schedule.rounds import Schedule


def copy_seconds(nbytes: float) -> Callable[[Device], float]:
    """Seconds to copy `nbytes` in memory: read once, written once."""
    return lambda device: 2 * nbytes / device.bandwidth


def no_seconds(device: Device) -> float:
    """Seconds of work that only hands on what is there."""
    return 0.0


def take_gradient(state: State) -> Array:
    """Exchange the gradient in place."""
    return state["gradient"]


def give_result(state: State, result: Array) -> None:
    """Leave what was exchanged as the launch's sum."""
    state["result"] = result


class Ends(NamedTuple):
    """The blocks that a rank brings into an exchange and takes out of it, in order."""

    brings: list[int]  # one per packet; empty where sums are made
    takes: list[int]


class Pieces(NamedTuple):
    """Coding of runs of blocks [first, stop) while other runs are on the wire.

    For an all-gather or an all-reduce. The packet of a run may change only by what is added to it.
    """

    make: Callable[[State, int, int], Array]  # the packet of a run, when it is first sent
    read: Callable[[State, int, int, Array], None]  # the packet of a run, when it has come
    most: Callable[[int, int], int]  # B that the packet of a run can have


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One exchange. `take` and `give` touch only the rank's own state of this bucket.

    State keys that every method shares: "gradient" (numel,) float32, which take may overwrite;
    "result" (numel,) float32, the sum, which the last give leaves; "rank" and "ranks", the
    member's number in the group and the group's size; "seed", "step" and "name" (the launch's),
    the key of random numbers. A method adds keys of its own, which live from step to step.
    """

    name: str = ""  # "" where a method has one phase
    schedule: Schedule
    payload: Payload
    # What goes into the exchange: for reducing goals (n,) float32; for an all-gather this rank's
    # packet; for an all-to-all a list of packets, one per destination.
    take: Callable[[State], Array] = take_gradient
    # What comes out: for an all-reduce (n,) float32; for a reduce-scatter this rank's block; for
    # an all-gather or all-to-all a list of packets in rank order.
    give: Callable[[State, Array], None] = give_result
    take_seconds: Callable[[Device], float] = no_seconds
    give_seconds: Callable[[Device], float] = no_seconds
    # Coding inside the exchange, after its last message, that its payload does not count.
    within_seconds: Callable[[Device], float] = no_seconds
    # What each rank brings and takes where teams of ranks exchange apart from each other; None: all
    # ranks exchange together, as the schedule's goal says.
    ends: Callable[[int], Ends] | None = None
    # The index sets that take and give look up: elements and parts of each, see `LaunchMemory`.
    sets: frozenset[tuple[int, int]] = frozenset()
    # For an exchange whose packets are coded one by one: `take` only prepares, and `give` gets an
    # empty list.
    pieces: Pieces | None = None


AGREE: dict[str, Callable[[Iterable[float]], float]] = {"sum": sum, "max": max, "min": min}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A phase that depends on the data: the group agrees on a number, which picks the phase.

    `agree` reduces the votes of all ranks. A simulation takes `expected`, or the number that a
    recorded timeline holds.
    """

    name: str
    vote: Callable[[State], float]
    agree: str  # "sum", "max" or "min"
    expected: float
    then: Callable[[float], Phase]

    def agreed(self, votes: Iterable[float]) -> float:
        """Reduce the votes of all members, in rank order, to the number that decides."""
        return float(AGREE[self.agree](votes))


def resolved(phase: Phase | Choice, decision: float | None = None) -> Phase:
    """Return the phase, or what a choice picks for a decision; None: for the expected number."""
    if isinstance(phase, Choice):
        return phase.then(phase.expected if decision is None else decision)
    return phase


def chooses(phases: Iterable[Phase | Choice]) -> bool:
    """Tell whether any of the phases depends on the data."""
    return any(isinstance(phase, Choice) for phase in phases)


class Method(ABC):
    """What a launch uses to sum a bucket over a group."""

    name: str
    lossless: bool
    # Where the state has "list", the ascending indices and the values of a gradient's non-zeros,
    # they stand for "gradient", and the sum is left in "list" instead of "result".
    lists: bool = False
    codec: Codec | None = None  # of a pair of a collective and a codec

    @property
    def coding(self) -> str:
        """The name of its codec, or its own where it codes in ways of its own."""
        return self.name if self.codec is None else self.codec.name

    @property
    def family(self) -> str:
        """The name of its collective, or its own where it routes in ways of its own."""
        return self.name

    @property
    def library(self) -> bool:
        """Whether the MPI library's own collective makes the sum."""
        return False

    @property
    def compresses(self) -> bool:
        """Whether it sends something else than the values as they are."""
        return self.coding != "dense"

    @property
    def fixed(self) -> bool:
        """Whether the number of elements alone tells its bytes."""
        return self.codec is not None and self.codec.fixed

    @property
    def keeps(self) -> bool:
        """Whether it loses something, but keeps that for later, in the state's "lost"."""
        return not self.lossless and (self.codec is None or self.codec.feedback)

    @property
    def measurable(self) -> bool:
        """Whether its loss can be told: not of a codec that has a momentum of its own instead."""
        return self.keeps or self.codec is None or not self.codec.stateful

    def at(self, step: int) -> "Method":
        """Return the method that a step of a training uses, see `Codec.at`."""
        return self

    @abstractmethod
    def phases(self, spec: BucketSpec, group: Group) -> tuple[Phase | Choice, ...]:
        """List the exchanges of one launch in order, equal on every rank."""

    def expected_phases(self, spec: BucketSpec, group: Group) -> list[Phase]:
        """List the exchanges of one launch where every choice is decided as expected."""
        return [resolved(phase) for phase in self.phases(spec, group)]

    def kept(self, spec: BucketSpec) -> float:
        """Bytes that a rank keeps of a bucket from step to step; lossy methods keep what is unsent.

        Exact to a few per cent: single numbers and narrow matrices are not counted.
        """
        return 0.0 if self.lossless else 4.0 * spec.numel
