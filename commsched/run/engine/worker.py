"""Workers, which compute for an engine; emulated workers sleep and draw gradients."""

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from commsched.arrays import Array
from commsched.errors import CommschedError
from commsched.exchange.registry import find_method
from commsched.exchange.rows import Rows, RowsPart
from commsched.exchange.sharded import own_places
from commsched.kernels import random
from commsched.kernels.modules import beside, module_of, on_host
from commsched.net.graph import Tensor
from commsched.plan.model import Launch, Plan
from commsched.program.registry import STRATEGIES
from commsched.program.slowness import slowness


class Worker(Protocol):
    """The interface of a worker: it computes the layers of a step."""

    def seconds(self, step: int, nominal: float) -> float:
        """Return the seconds that a compute operation takes if `nominal` seconds are planned."""


class GradientSource(Protocol):
    """The interface of a source of gradients, which also takes their sums."""

    def gradient(self, step: int, launch: int, out: Array) -> None:
        """Write a launch's gradient into `out` (numel,) float32."""

    def result(self, step: int, launch: int, values: Array) -> None:
        """Take a launch's sum, or mean, (numel,) float32; valid until its next gradient."""

    def follow(self, plan: Plan, kept: Mapping[str, Array]) -> None:
        """Continue with the launches of another plan of the same tensors.

        `kept` is this rank's unsent part, (numel,) float32 per tensor; the next gradient must
        include it.
        """


class ParameterHolder(Protocol):
    """The interface of a holder of the parameters that ranks exchange."""

    def parameters(self, step: int, launch: int, out: Array) -> None:
        """Write the parameters of a launch's tensors into `out` (numel,) float32.

        The results of earlier gradients are already applied.
        """

    def replace(self, step: int, launch: int, values: Array) -> None:
        """Copy new parameters of a launch's tensors, (numel,) float32."""


class Voter(Protocol):
    """The interface of a voter: it gives this rank's vote for a decision of all ranks."""

    def vote(self, step: int) -> float:
        """Return the vote that the strategy needs: the latest loss, or 1.0 if sums may overflow."""


class Roles(NamedTuple):
    """The objects that an engine calls, by their role; None: the plan does not need the role."""

    gradients: GradientSource
    parameters: ParameterHolder | None = None
    voter: Voter | None = None


def draw(plan: Plan, rank: int, tensor: Tensor) -> Array:
    """Draw a tensor's gradient on one rank: normal values on a support with the planned law.

    (numel,) float32, the same in every process and run of the same seed.
    """
    values = random.generator(plan.seed, 0, rank, f"{tensor.name}/values")
    if tensor.sparsity.law == "dense":
        return values.standard_normal(tensor.numel, np.float32)
    purpose = "share" if tensor.sparsity.law == "curve" else "support"
    common, own = (
        random.generator(plan.seed, 0, owner, f"{tensor.name}/{what}")
        for owner, what in ((0, "support"), (rank, purpose))
    )
    support = tensor.sparsity.drawn(tensor.numel, plan.machine.size, common, own)
    out = np.zeros(tensor.numel, np.float32)
    out[support] = values.standard_normal(len(support), np.float32)
    return out


def draw_parameter(plan: Plan, rank: int, tensor: Tensor) -> Array:
    """Draw a tensor's parameters on one rank before the first step: (numel,) float32."""
    values = random.generator(plan.seed, 0, rank, f"{tensor.name}/parameter")
    return values.standard_normal(tensor.numel, np.float32)


def draw_launch(plan: Plan, rank: int, launch: Launch) -> Array:
    """Draw a launch's gradient on one rank: (numel,) float32."""
    tensors = plan.net.tensors
    if launch.payload == "activation":
        values = random.generator(plan.seed, 0, rank, f"{launch.name}/values")
        found = values.standard_normal(launch.activations, np.float32)
        slots, team = plan.spec(launch).slots, plan.group_of(launch, rank)
        if slots is not None and team is not None:  # as full as planned
            table = found.reshape(team.size, -1, slots.row)
            table[..., 0] = slots.counts(team.ranks.index(rank), team.size)
        return found
    whole = {p.tensor: draw(plan, rank, tensors[p.tensor]) for p in launch.pieces}
    return _cut(whole, launch)


class Emulated:
    """Emulated compute: it sleeps with the plan's jitter, and draws gradients once for all steps.

    Gradients are arrays of `module`.
    """

    def __init__(self, plan: Plan, rank: int, module: Any = np) -> None:
        self._plan, self._rank, self._lists = plan, rank, False
        self._ranks = np.array([rank])
        self._jitter = (-1, 1.0)  # the factor of a step
        self._computing = 0.0  # s of a step's compute, needed for stalls only
        if plan.machine.stalls:
            roles = STRATEGIES[plan.strategy].lower(plan, 0, {}).roles
            self._computing = next(role.computing for role in roles if rank in role.ranks)
        self._gradients = {
            index: module.asarray(draw_launch(plan, rank, launch))
            for index, launch in enumerate(plan.launches)
            if launch.payload != "parameter" and plan.group_of(launch, rank) is not None
        }
        self._rows: dict[int, dict[int, RowsPart]] = {}  # launch -> gradients handed over as rows
        self._parameters: dict[str, Array] = {}  # tensor -> (numel,) float32
        if any(launch.payload == "parameter" for launch in plan.launches):
            tensors = plan.net.tensors.values()
            self._parameters = {
                t.name: module.asarray(draw_parameter(plan, rank, t)) for t in tensors
            }

    def seconds(self, step: int, nominal: float) -> float:
        if self._jitter[0] != step:
            plan = self._plan
            drawn = slowness(plan.machine, plan.seed, step, self._ranks, self._computing)
            self._jitter = step, float(drawn[0])
        return nominal * self._jitter[1]

    def gradient(self, step: int, launch: int, out: Array) -> None:
        if launch not in self._rows:  # rows are already in the bucket
            out[:] = beside(self._gradients[launch], out)

    def hand_over_lists(self) -> None:
        """From now on hand over the buckets of sparse tensors by `rows`."""
        self._lists = True
        self._cut_rows()

    def rows(self, launch: int) -> dict[int, RowsPart]:
        """Return a launch's gradient as rows, by position in the bucket; {}: it is an array."""
        return self._rows.get(launch, {})

    def result(self, step: int, launch: int, values: Array) -> None:
        """Ignore the sum: nobody needs sums of drawn gradients."""

    def parameters(self, step: int, launch: int, out: Array) -> None:
        planned = self._plan.launches[launch]
        sharded = find_method(planned.method).sharded
        places = own_places(self._plan, launch, self._rank) if sharded else planned.places
        for name, there, here in places:
            out[here] = beside(self._parameters[name][there], out)

    def replace(self, step: int, launch: int, values: Array) -> None:
        put_back(self._plan, self._plan.launches[launch], values, self._parameters)

    def vote(self, step: int) -> float:
        """Vote for no overflow, or, for controllers, with a loss that falls ever more slowly."""
        return 0.0 if STRATEGIES[self._plan.strategy].decides == "overflow" else 1.0 / (1.0 + step)

    @property
    def roles(self) -> Roles:
        """Return every role of an engine."""
        return Roles(self, self, self)

    def follow(self, plan: Plan, kept: Mapping[str, Array]) -> None:
        """Cut these gradients into other buckets; `Carrying` adds the unsent part."""
        whole: dict[str, Array] = {}
        for index, values in self._gradients.items():
            put_back(plan, self._plan.launches[index], values, whole)
        self._plan = plan
        self._gradients = {i: _cut(whole, launch) for i, launch in enumerate(plan.launches)}
        self._cut_rows()

    def _cut_rows(self) -> None:
        self._rows = {
            index: _parts(self._plan, index, values)
            for index, values in self._gradients.items()
            if self._lists and self._plan.spec(self._plan.launches[index]).lists
        }


class Carrying:
    """A source that, once after a change of plan, adds the unsent part of earlier gradients."""

    def __init__(self, source: GradientSource) -> None:
        self._source = source
        self.result = source.result
        self._carried: dict[int, Array] = {}  # launch -> (numel,) float32
        self._plan: Plan | None = None  # the plan of the launches in `_carried`

    def gradient(self, step: int, launch: int, out: Array) -> None:
        self._source.gradient(step, launch, out)
        carried = self._carried.pop(launch, None)
        if carried is not None:
            out += beside(carried, out)
            assert self._plan is not None
            launches = self._plan.launches
            for other in list(self._carried):  # launches for other steps have the same tensors
                if launches[other].since != launches[launch].since:
                    self._carried.pop(other, None)

    def follow(self, plan: Plan, kept: Mapping[str, Array]) -> None:
        self._source.follow(plan, {})
        there = {name: on_host(values) for name, values in kept.items()}
        for index, values in self._carried.items():  # a change without a step since the last one
            assert self._plan is not None
            waiting: dict[str, Array] = {}
            put_back(self._plan, self._plan.launches[index], values, waiting)
            for name, more in waiting.items():
                there[name] = there[name] + more if name in there else more
        self._plan = plan
        self._carried = {
            index: np.concatenate(
                [
                    there[name][start:stop] if name in there else np.zeros(stop - start, np.float32)
                    for name, start, stop in launch.pieces
                ]
            )
            for index, launch in enumerate(plan.launches)
            if any(piece.tensor in there for piece in launch.pieces)
        }

    def kept(self) -> dict[str, Array]:
        """Return the unsent part for the next gradients, (numel,) float32 by launch."""
        launches = () if self._plan is None else self._plan.launches
        return {launches[index].name: values for index, values in self._carried.items()}

    def restore(self, plan: Plan, kept: Mapping[str, Array]) -> None:
        """Continue with what `kept` returned under this plan; reject anything else."""
        index = {launch.name: i for i, launch in enumerate(plan.launches)}
        for name, values in kept.items():
            if name not in index or values.shape != (plan.launches[index[name]].numel,):
                raise CommschedError(
                    f"the state holds {values.size} values of launch {name}; this plan has not"
                )
        self._plan, self._carried = plan, {index[name]: kept[name] for name in kept}


def _parts(plan: Plan, index: int, values: Array) -> dict[int, RowsPart]:
    """Return a launch's gradient, (numel,) float32, as its non-zero rows."""
    launch, found = plan.launches[index], {}
    for name, there, here in launch.places:
        width = prod(plan.net.tensors[name].shape[1:])
        begin = there.start // width * width  # the piece may begin within a row
        rows = -(-there.stop // width) - begin // width
        whole = np.zeros(rows * width, np.float32)
        whole[there.start - begin : there.stop - begin] = on_host(values[here])
        hit = np.flatnonzero(whole.reshape(rows, width).any(axis=1))
        kept = beside(whole.reshape(rows, width)[hit], values)
        number = beside(hit + begin // width, values)
        found[here.start] = RowsPart(Rows(number, kept), there.start, there.stop)
    return found


def put_back(plan: Plan, launch: Launch, values: Array, into: dict[str, Array]) -> None:
    """Write a bucket's values to the places of its pieces in their tensors, zeros elsewhere."""
    for name, there, here in launch.places:
        if name not in into:
            numel = plan.net.tensors[name].numel
            into[name] = module_of(values).zeros(numel, np.float32)
        into[name][there] = beside(values[here], into[name])


def _cut(whole: Mapping[str, Array], launch: Launch) -> Array:
    """Return a launch's gradient from whole tensors."""
    parts = [whole[name][start:stop] for name, start, stop in launch.pieces]
    return module_of(parts[0]).concatenate(parts)
