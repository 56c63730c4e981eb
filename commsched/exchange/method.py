"""Methods as sequences of phases, each of local work, an exchange of a payload, local work."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from commsched.arrays import Array, Ints
from commsched.coding.codec import Codec, State
from commsched.exchange.payload import Payload
from commsched.machine.model import Device, Group
from commsched.net.bucket import BucketSpec
from commsched.schedule.rounds import Schedule


def copy_seconds(nbytes: float) -> Callable[[Device], float]:
    """Return the seconds to copy `nbytes` in memory: read once, written once."""
    return lambda device: 2 * nbytes / device.bandwidth


def no_seconds(device: Device) -> float:
    """Return 0 seconds, for work that only passes data on."""
    return 0.0


def take_gradient(state: State) -> Array:
    """Exchange the gradient in place."""
    return state["gradient"]


def give_result(state: State, result: Array) -> None:
    """Store the exchange's result as the launch's sum."""
    state["result"] = result


def give_decoded(codec: Codec, cuts: Ints) -> Callable[[State, list[Array]], None]:
    """Decode a packet into each run of the gradient, cut at `cuts`: the result."""

    def give(state: State, packets: list[Array]) -> None:
        values = state["result"] = state["gradient"]
        for packet, first, stop in zip(packets, cuts[:-1], cuts[1:], strict=True):
            codec.decode(packet, values[first:stop])

    return give


class Ends(NamedTuple):
    """The blocks that a rank contributes to an exchange and receives from it, in order."""

    brings: list[int]  # one per packet; empty if the exchange sums
    takes: list[int]


class Pieces(NamedTuple):
    """The coding of runs of blocks [first, stop) while other runs are on the wire.

    For an all-gather or an all-reduce. Only additions may change the packet of a run.
    """

    make: Callable[[State, int, int], Array]  # the packet of a run, before its first send
    read: Callable[[State, int, int, Array], None]  # the packet of a run, after its arrival
    most: Callable[[int, int], int]  # largest B of a run's packet


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One exchange. `take` and `give` touch only the rank's own state of this bucket.

    State keys that every method shares: "gradient", (numel,) float32, which `take` may overwrite;
    "result", (numel,) float32, the sum that the last `give` stores; "rank" and "ranks", the
    member's number in the group and the group's size; "seed", "step" and "name" (the launch's),
    the key of random numbers. A method adds keys of its own, which live from step to step.
    """

    name: str = ""  # "" if a method has one phase
    schedule: Schedule
    payload: Payload
    # Input of the exchange: for reducing goals (n,) float32; for an all-gather this rank's
    # packet; for an all-to-all a list of packets, one per destination.
    take: Callable[[State], Array] = take_gradient
    # Output of the exchange: for an all-reduce (n,) float32; for a reduce-scatter this rank's
    # block; for an all-gather or all-to-all a list of packets in rank order.
    give: Callable[[State, Array], None] = give_result
    vote_seconds: Callable[[Device], float] = no_seconds  # to make the vote that picks this phase
    take_seconds: Callable[[Device], float] = no_seconds
    give_seconds: Callable[[Device], float] = no_seconds
    # Seconds of coding after the last message, which the payload does not include.
    within_seconds: Callable[[Device], float] = no_seconds
    # Each rank's blocks if teams of ranks exchange separately; None: all ranks exchange together,
    # as the schedule's goal says.
    ends: Callable[[int], Ends] | None = None
    # Shares of the bucket that a rank has in its memory before the exchange, and after it.
    reads: float = 1.0
    leaves: float = 1.0
    # Index sets that `take` and `give` read: elements and parts of each, see `LaunchMemory`.
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
    """Return the phase, or the phase that a choice picks; decision None: the expected number."""
    if isinstance(phase, Choice):
        return phase.then(phase.expected if decision is None else decision)
    return phase


def chooses(phases: Iterable[Phase | Choice]) -> bool:
    """Tell whether any of the phases depends on the data."""
    return any(isinstance(phase, Choice) for phase in phases)


class Method(ABC):
    """A way to sum a bucket over a group."""

    name: str
    lossless: bool
    # If True and the state has "list", the ascending indices and the values of a gradient's
    # non-zeros, "list" replaces "gradient", and holds the sum instead of "result": the same bits.
    lists: bool = False
    static: bool = False  # for gradients whose non-zeros keep their positions
    sparse: bool = False  # sends only non-zeros, so that a selection may come before it
    # The pair that sums two narrow matrices in place of each tensor of a bucket; "" if the method
    # does not treat tensors as matrices.
    matrix_sums: str = ""
    codec: Codec | None = None  # if the method is a pair of a collective and a codec
    # If True, a rank brings or gets only its shard of the bucket, see `exchange.sharded`, and the
    # bucket has memory only while it is under way.
    sharded: bool = False

    @property
    def coding(self) -> str:
        """Return the name of the method's codec, or of the method itself if it has no codec."""
        return self.name if self.codec is None else self.codec.name

    @property
    def family(self) -> str:
        """Return the name of the method's collective, or of the method itself if it has none."""
        return self.name

    @property
    def library(self) -> bool:
        """Tell whether the MPI library's own collective makes the sum."""
        return False

    @property
    def compresses(self) -> bool:
        """Tell whether the method sends anything other than the plain values."""
        return self.coding != "dense"

    @property
    def fixed(self) -> bool:
        """Tell whether the bytes of a packet depend only on the number of elements."""
        return self.codec is not None and self.codec.fixed

    @property
    def keeps(self) -> bool:
        """Tell whether the method is lossy, but keeps its losses in the state's "lost"."""
        return not self.lossless and (self.codec is None or self.codec.feedback)

    @property
    def measurable(self) -> bool:
        """Tell whether the method's loss can be measured: not if its codec has a momentum."""
        return self.keeps or self.codec is None or not self.codec.stateful

    def at(self, step: int) -> "Method":
        """Return the method's form in a step of a training, see `Codec.at`."""
        return self

    def takes_lists(self, group: Group) -> bool:
        """Tell whether the state may have "list" if a group sums, see `lists`."""
        return self.lists

    def seen(self, spec: BucketSpec, group: Group) -> BucketSpec:
        """Return a bucket's content in the form that the method gets.

        It has lists only with `takes_lists`, and the tensors' widths only with `matrix_sums`.
        """
        lists = spec.lists and self.takes_lists(group)
        widths = spec.widths if self.matrix_sums else ()
        if (lists, widths) == (spec.lists, spec.widths):
            return spec
        return replace(spec, lists=lists, widths=widths)

    @abstractmethod
    def phases(self, spec: BucketSpec, group: Group) -> tuple[Phase | Choice, ...]:
        """List the exchanges of one launch in order, equal on every rank."""

    def expected_phases(self, spec: BucketSpec, group: Group) -> list[Phase]:
        """List the exchanges of one launch if every choice is decided as expected."""
        return [resolved(phase) for phase in self.phases(spec, group)]

    def kept(self, spec: BucketSpec) -> float:
        """Return the B that a rank keeps of a bucket between steps, such as unsent values.

        Exact to a few per cent: single numbers and narrow matrices are not counted.
        """
        if self.codec is not None:
            return spec.numel * (4.0 * self.codec.feedback + self.codec.memory)
        return 0.0 if self.lossless else 4.0 * spec.numel
