"""The gradients that a training loop hands over and waits for in a step, and completed layers."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from commsched.arrays import Array
from commsched.coding.codec import State
from commsched.errors import Agreed, CommschedError
from commsched.exchange.lists import joint
from commsched.exchange.rows import Rows, RowsPart, rows_of
from commsched.kernels.merge import Listed, listed
from commsched.net.graph import Net, Tensor
from commsched.plan.model import Plan
from commsched.program.launch_ops import check_can_leave
from commsched.program.model import Op, Program, Role
from commsched.program.read_plan import AnyPlan, checked_plan
from commsched.program.registry import STRATEGIES
from commsched.run.job import agree
from commsched.run.updates import check_parameters

KINDS = {"cpu": "NumPy", "cuda": "CuPy"}


class BucketSlice(NamedTuple):
    """Elements [start, stop) of a tensor lie from element `at` on in a launch's bucket."""

    launch: int
    at: int
    start: int
    stop: int

    @property
    def bucket(self) -> slice:
        return slice(self.at, self.at + self.stop - self.start)


def since_of(plan: Plan, step: int) -> int:
    """Return the first step with the launches of `step`."""
    return max((x.since for x in plan.launches if x.since <= step), default=0)


def places_of(plan: Plan, since: int = 0) -> dict[str, tuple[BucketSlice, ...]]:
    """Return each tensor's slices in buckets by ascending elements; tensors as their sums return.

    `since`: the first step of the launches in use.
    """
    found: dict[str, list[BucketSlice]] = {}
    last: dict[str, int] = {}
    used = [i for i, launch in enumerate(plan.launches) if launch.since == since]
    summed = [i for i in used if plan.launches[i].payload == "gradient"]
    order = sorted(summed, key=lambda i: plan.launches[i].priority)
    for position, index in enumerate(order):
        for name, there, here in plan.launches[index].places:
            found.setdefault(name, []).append(
                BucketSlice(index, here.start, there.start, there.stop)
            )
            last[name] = position
    names = sorted(found, key=last.__getitem__)
    return {name: tuple(sorted(found[name], key=lambda place: place.start)) for name in names}


def lowered(
    plan: Plan, step: int, rank: int, decisions: Mapping[str, float]
) -> tuple[Sequence[Op], Program]:
    """Return a rank's operations in a step, and the program without its compute."""
    whole = STRATEGIES[plan.strategy].lower(plan, step, decisions)
    role = whole.role_of(rank)
    ops = tuple(op for op in role.ops if op.stream != "compute")
    roles = (Role(ranks=role.ranks, ops=ops),)
    return role.ops, Program(step=step, roles=roles, reach=whole.reach)


def check_name(name: str, net: Net, names: Collection[str]) -> None:
    """Reject a tensor whose gradient the plan does not exchange."""
    if not isinstance(name, str) or name not in names:
        shown = ", ".join(list(names)[:8]) + (", ..." if len(names) > 8 else "")
        raise CommschedError(f"no tensor named {name!r} in net {net.name!r}; known: {shown}")


def check_left(steps: list[float]) -> None:
    """Raise an error if the ranks are not in the same step at the end."""
    if min(steps) != max(steps):
        first, last = steps.index(min(steps)), steps.index(max(steps))
        raise CommschedError(
            f"the ranks left the with block after different numbers of steps: rank {first}"
            f" after {int(min(steps)) + 1}, rank {last} after {int(max(steps)) + 1}"
        )


def restored(work: Callable[[], int], comm: MPI.Intracomm) -> int:
    """Restore the states of all ranks; return the step before which all states were kept."""
    step = agree.on_all_ranks(work, comm)
    steps = agree.gather_numbers(step, comm)
    if min(steps) != max(steps):
        first, last = steps.index(min(steps)), steps.index(max(steps))
        raise Agreed(
            f"the states were kept before different steps: that of rank {first} before step"
            f" {int(min(steps))}, that of rank {last} before step {int(max(steps))}"
        )
    return step


def check_strategy(plan: Plan, parameters: Mapping[str, Any] | None, replans: bool = False) -> None:
    """Reject a plan whose exchanges do not suit a caller that computes all layers at once."""
    if replans and any(launch.since for launch in plan.launches):
        raise CommschedError(
            "replan= needs a plan whose launches are the same in every step; this one uses --first"
            " or --later"
        )
    strategy = STRATEGIES[plan.strategy]
    if replans and not strategy.sums_every_step:
        raise CommschedError(
            f"replan= is for plans that sum gradients in every step, not for {plan.strategy!r}"
        )
    if replans:
        check_can_leave(plan.launches, "replan=", "leave out replan=")
    if strategy.averages and parameters is not None:
        strategy.lower(plan, 0, {})  # checks its launches
        check_parameters(plan, parameters)
    elif strategy.sums_every_step:
        check_launches(plan)
    else:
        what = "needs the parameters" if strategy.averages else "is for `commsched train`"
        raise CommschedError(
            f"an Exchanger sums gradients; a plan of strategy {plan.strategy!r} {what}"
        )


def check_launches(plan: Plan) -> None:
    """Reject launches that do not sum gradients over all ranks."""
    for launch in plan.launches:
        if launch.payload != "gradient":
            raise CommschedError(
                f"launch {launch.name!r} exchanges {launch.payload}s; an Exchanger sums gradients"
            )
        if (ranks := plan.group(launch).size) != plan.machine.size:
            raise CommschedError(
                f"launch {launch.name!r} exchanges among {ranks} of {plan.machine.size} ranks; an"
                " Exchanger sums over all"
            )


def checked_successor(given: AnyPlan, old: Plan) -> Plan:
    """Check a plan that will replace another one between two steps."""
    plan = checked_plan(given)
    check_launches(plan)
    own, other = (
        [(layer.name, [(t.name, t.shape) for t in layer.tensors]) for layer in net.layers]
        for net in (old.net, plan.net)
    )
    if own != other:
        raise CommschedError(
            f"the plan is for net {plan.net.name!r}, which has other layers or tensors than net"
            f" {old.net.name!r}; follow a plan of the same net"
        )
    return plan


def checked_step(kept: Mapping[str, Any], plan: Plan, rank: int) -> int:
    """Return the step before which a rank kept its state; reject a state that does not fit."""
    lacks = [key for key in ("plan", "step", "carried") if key not in kept]
    if lacks:
        raise CommschedError(f"the state lacks {lacks[0]!r}; restore all that kept() returned")
    of = kept.get("rank", rank)  # missing in older states
    if of != rank:
        raise CommschedError(f"the state is of rank {of}, not of rank {rank}")
    own, here, step = str(kept["plan"]), plan.hash, kept["step"]
    if own != here:
        raise CommschedError(f"the state belongs to plan {own[:12]}..., not to {here[:12]}...")
    if not isinstance(step, int) or step < 0:
        raise CommschedError(f"the state's step must be a whole number from 0 on, got {step!r}")
    return step


def check_gradient(
    tensor: Tensor, gradient: object, module: Any, device: str, rows: int | None = None
) -> None:
    """Reject an array that would be summed wrongly; values are not checked.

    `rows`: number of the tensor's rows in the array.
    """
    shape = tensor.shape if rows is None else (rows, *tensor.shape[1:])
    where = f"tensor {tensor.name!r}"
    if not isinstance(gradient, module.ndarray) or isinstance(gradient, np.ma.MaskedArray):
        kind = type(gradient)
        got = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        raise CommschedError(f"{where}: a gradient is a {KINDS[device]} array, got {got}")
    if gradient.dtype != np.float32:
        raise CommschedError(f"{where}: a gradient is float32, got {gradient.dtype}")
    if gradient.shape != shape:
        raise CommschedError(
            f"{where}: the gradient's shape must be {list(shape)}, got {list(gradient.shape)}"
        )


def check_rows(tensor: Tensor, given: tuple[Any, ...], module: Any, device: str) -> Rows:
    """Reject rows and values that would be summed wrongly."""
    where = f"tensor {tensor.name!r}"
    if len(given) != 2 or not all(isinstance(part, module.ndarray) for part in given):
        raise CommschedError(
            f"{where}: rows of a gradient are (rows, values), {KINDS[device]} arrays"
        )
    number, values = given
    if number.ndim != 1 or number.dtype.kind not in "iu":
        raise CommschedError(
            f"{where}: the numbers of rows are whole numbers, one per row, got {number.dtype} of"
            f" shape {list(number.shape)}"
        )
    check_gradient(tensor, values, module, device, rows=len(number))
    outside = (number < 0) | (number >= tensor.shape[0])
    if outside.any():
        raise CommschedError(
            f"{where} has {tensor.shape[0]} rows, got a gradient of row {int(number[outside][0])}"
        )
    width = tensor.numel // tensor.shape[0]
    return Rows(number, values.reshape(len(number), width))


def put(gradient: Array, place: BucketSlice, bucket: Array) -> None:
    """Copy the slices of a gradient that belong into a bucket, (numel,) float32."""
    run = bucket[place.bucket]
    if len(run) == gradient.size:
        run.reshape(gradient.shape)[...] = gradient
    else:
        run[:] = gradient.reshape(-1)[place.start : place.stop]


class Caller:
    """The gradients from the caller, and the sums for the caller."""

    def __init__(self) -> None:
        # launch -> gradients that are copied into its bucket before the bucket is encoded
        self._lent: defaultdict[int, list[tuple[Array, BucketSlice]]] = defaultdict(list)
        self.results: dict[int, Array | Listed] = {}  # launch -> (numel,) float32, or a list
        self.whole: dict[str, Array] = {}  # buffers that reassemble split tensors
        self.as_rows: set[str] = set()  # tensors handed over as rows in this step

    def take(
        self,
        name: str,
        gradient: Array | Rows,
        places: Sequence[BucketSlice],
        states: Sequence[State],
        lent: bool,
    ) -> None:
        """Copy a tensor's gradient into its buckets, or let the thread that encodes them do so."""
        if isinstance(gradient, Rows):
            self.as_rows.add(name)
            own = gradient if lent else gradient.copy()
            for place in places:
                parts = states[place.launch].setdefault("rows", {})
                parts[place.at] = RowsPart(own, place.start, place.stop)
            return
        for place in places:
            if lent:
                self._lent[place.launch].append((gradient, place))
            else:
                put(gradient, place, states[place.launch]["gradient"])

    def gradient(self, step: int, launch: int, out: Array) -> None:
        """Copy the lent gradients; all others are in the bucket already."""
        for gradient, place in self._lent.pop(launch, ()):
            put(gradient, place, out)

    def result(self, step: int, launch: int, values: Array | Listed) -> None:
        self.results[launch] = values

    def sum_of(
        self, tensor: Tensor, places: Sequence[BucketSlice], module: Any
    ) -> Array | tuple[Array, Array]:
        """Return a tensor's sum in the form of its gradient: whole, or as rows and values."""
        name, shape = tensor.name, tensor.shape
        if name in self.as_rows:
            number, values = self.rows(places, int(np.prod(shape[1:])))
            return number, values.reshape(len(number), *shape[1:])
        view = self.view(places)
        if view is not None:
            return view.reshape(shape)
        if name not in self.whole:
            self.whole[name] = module.empty(shape, np.float32)
        self.write(places, self.whole[name].reshape(-1))
        return self.whole[name]

    def rows(self, places: Sequence[BucketSlice], width: int) -> tuple[Array, Array]:
        """Return a tensor's sum as rows of `width` elements: ascending, without empty ones."""
        return rows_of(joint([(self._nonzeros(place), place.start) for place in places]), width)

    def view(self, places: Sequence[BucketSlice]) -> Array | None:
        """Return a tensor's sum, (numel,) float32, if it lies in one bucket's result."""
        result = self.results[places[0].launch]
        alone = len(places) == 1 and not isinstance(result, Listed)
        return result[places[0].bucket] if alone else None

    def write(self, places: Sequence[BucketSlice], out: Array) -> None:
        """Write a tensor's sum into (numel,) float32."""
        for place in places:
            result, run = self.results[place.launch], out[place.start : place.stop]
            if isinstance(result, Listed):
                index, values = self._nonzeros(place)
                run.fill(0)
                run[index] = values
            else:
                run[:] = result[place.bucket]

    def _nonzeros(self, place: BucketSlice) -> Listed:
        """Return the non-zeros of a slice of a bucket, counted from the slice's start."""
        result = self.results[place.launch]
        if isinstance(result, Listed):
            return result.part(place.bucket.start, place.bucket.stop)
        return listed(result[place.bucket])

    def follow(self, plan: Plan, kept: Mapping[str, Array]) -> None:
        """Do nothing: a tensor that falls back to dense stays in its bucket."""


class Handover:
    """The tensors of a step that were handed over or waited for, and the layers they complete.

    `names`: the tensors whose gradients are exchanged: all tensors of the net, or none.
    """

    def __init__(self, net: Net, names: Collection[str]) -> None:
        self._layers = net.layers[::-1]
        self._depth = {layer.name: i for i, layer in enumerate(self._layers)}
        self._tensors = [t.name for layer in self._layers for t in layer.tensors if t.name in names]
        self._needs = [frozenset(t.name for t in layer.tensors) for layer in self._layers]
        self._complete = 0  # layers, in backward order
        self._taken: set[str] = set()
        self._waited: set[str] = set()
        self.step = -1

    def begin_at(self, step: int) -> None:
        """Begin at `step`: the next tensor is its first."""
        self.step = step - 1
        self._waited.update(self._tensors)

    def begin(self) -> None:
        """Begin the next step."""
        self.step += 1
        self._complete = 0
        self._taken.clear()
        self._waited.clear()

    def take(self, name: str) -> bool:
        """Record a tensor as handed over; return True if it is the first of a step."""
        first = self.step < 0 or self.over
        if first:
            self.begin()
        elif name in self._taken:
            missing = self._first_not_in(self._taken)
            if missing is not None:
                raise CommschedError(
                    f"step {self.step}: tensor {name!r} was handed over twice; {missing!r} is"
                    " still missing"
                )
            raise CommschedError(
                f"step {self.step}: tensor {self._first_not_in(self._waited)!r} was not waited"
                " for; wait for every tensor before the next step"
            )
        self._taken.add(name)
        return first

    def completed(self, all_of_them: bool = False) -> Iterator[str]:
        """Return the layers whose backward is over: their and all later layers' tensors are in."""
        while self._complete < len(self._layers):
            layer = self._layers[self._complete]
            if not (all_of_them or self._needs[self._complete] <= self._taken):
                return
            self._complete += 1
            yield layer.name

    def wait(self, name: str, after: list[str]) -> None:
        """Record a tensor as waited for; `after` are the layers that its buckets wait for."""
        if self.over or name not in self._taken:
            step = max(self.step + self.over, 0)
            raise CommschedError(
                f"step {step}: tensor {name!r} was waited for before it was handed over with"
                " ready()"
            )
        over = self._complete == len(self._layers)
        if not over and any(self._depth[layer] >= self._complete for layer in after):
            raise CommschedError(
                f"step {self.step}: tensor {name!r} was waited for before"
                f" {self._first_not_in(self._taken)!r} was handed over, which its bucket needs"
            )
        self._waited.add(name)

    @property
    def over(self) -> bool:
        """Tell whether every tensor of the step was waited for."""
        return len(self._waited) == len(self._tensors)

    def _first_not_in(self, names: set[str]) -> str | None:
        return next((name for name in self._tensors if name not in names), None)
