"""The search space of a planner: units of gradient, buckets of units, and when they are ready."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import NamedTuple

from commsched.exchange.error import is_small
from commsched.net.bucket import BucketSpec, Piece
from commsched.net.graph import Net
from commsched.planner.request import Request
from commsched.program.launch_ops import OPTIMIZERS
from commsched.program.parts import CodingTime, handover_seconds
from commsched.program.registry import STRATEGIES
from commsched.simulate.clocks import Waking
from commsched.simulate.cores import capacities

PARTS = 32  # tensors larger than 1/PARTS of the net are split
MOST_PARTS = 16  # of one tensor
LEAST_PART = 2**18  # elements
GROUPS = 4  # groups of layers; each group's small tensors share a unit if others may be lossy
MOST_UNITS = 320  # beyond, neighbours are joined before the search begins


class Unit(NamedTuple):
    """Elements that always share a bucket: a tensor, a part of a large one, or small neighbours."""

    pieces: tuple[Piece, ...]
    numel: int
    ready: float  # s from the start of the backward pass on
    after: int  # position of the layer whose backward completes it, forward order
    sparse: bool  # whether bytes depend on more than the number of elements
    forced: str = ""  # the method that the user wants


class Bucket(NamedTuple):
    """Units that travel together."""

    units: tuple[Unit, ...]
    numel: int
    ready: float
    after: int
    sparse: bool

    @property
    def forced(self) -> str:
        """Return the method that the user wants for it."""
        return self.units[0].forced

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Return the bucket's pieces, neighbouring runs of a tensor as one piece."""
        found: list[Piece] = []
        for piece in (piece for unit in self.units for piece in unit.pieces):
            last = found[-1] if found else None
            if last and last.tensor == piece.tensor and last.stop == piece.start:
                found[-1] = Piece(last.tensor, last.start, piece.stop)
            else:
                found.append(piece)
        return tuple(found)


class MethodChoice(NamedTuple):
    """A bucket and the number of its method among the problem's."""

    bucket: Bucket
    method: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan in the making: launches in their order."""

    choices: tuple[MethodChoice, ...]
    late: bool  # buckets are applied before their first reader, not at the end of the step


def bucket(units: Sequence[Unit]) -> Bucket:
    """Put units together."""
    if len(units) == 1:
        unit = units[0]
        return Bucket((unit,), unit.numel, unit.ready, unit.after, unit.sparse)
    return Bucket(
        tuple(units),
        sum(unit.numel for unit in units),
        max(unit.ready for unit in units),
        min(unit.after for unit in units),
        any(unit.sparse for unit in units),
    )


@dataclass(frozen=True, eq=False)
class StepClock:
    """The seconds of a step's own work, and how the machine slows exchanges during it."""

    forward: tuple[float, ...]  # s per layer
    backward: tuple[float, ...]  # s per layer
    apply: float  # s per element, put back and updated
    overlap: float  # share of a transfer that progresses under compute
    on_cores: bool = False  # whether the ranks' cores compute the layers
    capacity: float = inf  # cores that the tasks of a rank share
    busy: float = 0.0  # share of a rank's cores that an exchange and its interrupts take
    waking: Waking | None = None
    # s for which an exchange that wakes its thread up also keeps a rank's share of the cores busy
    dispatch: float = 0.0
    handover: float = 0.0  # s, mean until a thread takes up the work that another made ready
    beside: float = 1.0  # factor of `dispatch` and `handover` on a rank that computes
    slowest: float = 0.0  # s, mean until the threads of all ranks have taken up their work
    early: float = 1.0  # share of `apply` done per bucket if buckets are applied at the step's end
    update: float = 0.0  # s, the rest of `apply`, after the last bucket

    @classmethod
    def of(cls, request: Request) -> "StepClock":
        """Read the seconds of a request."""
        net, machine = request.net, request.machine
        pairs = [net.seconds(layer, machine.device) for layer in net.layers]
        settings = {**STRATEGIES["sync"].defaults, **request.params}
        traffic = OPTIMIZERS.get(str(settings["optimizer"]), (0, 0))[1]
        apply = net.update_seconds(1.0, traffic, machine.device)
        at_once = net.apply is not None and apply > 0.0
        early = (net.apply or 0.0) / (apply * net.numel) if at_once else 1.0
        link = machine.between if machine.nodes > 1 else machine.inside
        coding, handover = CodingTime.of(machine, net), machine.handover
        return cls(
            forward=tuple(pair[0] for pair in pairs),
            backward=tuple(pair[1] for pair in pairs),
            apply=apply,
            overlap=machine.overlap,
            on_cores=net.occupies_cores,
            capacity=float(capacities(machine).min()),
            busy=min(1.0, (link.busy + link.interrupts) / machine.alone),
            waking=Waking.of(machine, coding),
            dispatch=machine.dispatch / machine.alone + coding.cold,
            handover=handover,
            beside=handover_seconds(machine, net) / handover if handover else 1.0,
            # The mean of the largest of n exponential numbers is their n-th harmonic number.
            slowest=handover * sum(1 / k for k in range(1, machine.size + 1)),
            early=early,
            update=(1.0 - early) * apply * net.numel,
        )

    def floor(self, numel: int) -> float:
        """Return the seconds of a rank's own work in a step that applies `numel` elements."""
        return sum(self.backward) + sum(self.forward) + numel * self.apply

    @cached_property
    def ready(self) -> tuple[float, ...]:
        """Return when the backward of each layer has ended, in s from the start of the pass."""
        found, now = [], 0.0
        for seconds in reversed(self.backward):
            now += seconds
            found.append(now)
        return tuple(reversed(found))

    @cached_property
    def remaining(self) -> tuple[float, ...]:
        """Return the forward seconds from each layer on, and 0 after the last."""
        found = [0.0]
        for seconds in reversed(self.forward):
            found.append(found[-1] + seconds)
        return tuple(reversed(found))


def whole_tensors(request: Request, clock: StepClock) -> list[Unit]:
    """Return the tensors of a net in backward order."""
    return [
        Unit(
            (Piece(tensor.name, 0, tensor.numel),),
            tensor.numel,
            clock.ready[position],
            position,
            tensor.sparsity.law != "dense",
            request.force.get(tensor.name, ""),
        )
        for position, layer in reversed([*enumerate(request.net.layers)])
        for tensor in reversed(layer.tensors)
    ]


def units(request: Request, clock: StepClock) -> list[Unit]:
    """Return the units of a net in backward order."""
    net, found = request.net, list[Unit]()
    limit = max(net.numel / PARTS, LEAST_PART)
    for whole in whole_tensors(request, clock):
        count = max(1, -int(-whole.numel // limit))
        found += parted(whole, min(MOST_PARTS, count))
    if request.max_error is not None and not request.small:
        found = _apart(found, net)
    return _joined(found, net) if len(found) > MOST_UNITS else found


def _apart(found: list[Unit], net: Net) -> list[Unit]:
    """Move each group's small tensors behind the group, so that its other tensors may be lossy."""
    tensors, size = net.tensors, -(-len(found) // GROUPS)
    kept: list[Unit] = []
    for start in range(0, len(found), size or 1):
        few: list[Unit] = []
        for unit in found[start : start + size]:
            small = not unit.sparse and is_small(tensors[unit.pieces[0].tensor].shape)
            (few if small and not unit.forced else kept).append(unit)
        if few:
            kept.append(_one(few))
    return kept


def parted(unit: Unit, count: int) -> list[Unit]:
    """Cut a whole tensor into near-equal parts; one that is forced or sparse stays whole."""
    if count == 1 or unit.forced or unit.sparse:
        return [unit]
    (piece,) = unit.pieces
    cuts = pairwise(unit.numel * k // count for k in range(count + 1))
    return [
        unit._replace(pieces=(Piece(piece.tensor, start, stop),), numel=stop - start)
        for start, stop in cuts
    ]


def _joined(found: list[Unit], net: Net) -> list[Unit]:
    """Join small neighbours until few units are left."""
    size = net.numel / MOST_UNITS / 64
    while True:
        groups: list[list[Unit]] = []
        numel = float("inf")
        for unit in found:
            alone = bool(unit.forced) or unit.sparse
            if alone or numel + unit.numel > size:
                groups.append([])
                numel = 0.0
            groups[-1].append(unit)
            numel = float("inf") if alone else numel + unit.numel
        if len(groups) <= MOST_UNITS or size > net.numel:
            return [_one(group) for group in groups]
        size *= 1.5


def _one(group: list[Unit]) -> Unit:
    if len(group) == 1:
        return group[0]
    made = bucket(group)
    return Unit(made.pieces, made.numel, made.ready, made.after, made.sparse)


def spec_of(made: Bucket, net: Net) -> BucketSpec:
    """Return the expected content of a bucket."""
    return BucketSpec.of(made.pieces, net.tensors)
