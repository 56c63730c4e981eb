"""The worker that trains a pruned net with 16-bit gradients: strategy `samo`."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from commsched.arrays import Array
from commsched.errors import CommschedError
from commsched.kernels import pruned, random
from commsched.kernels.modules import on_host
from commsched.kernels.pruned import AdamConstants, Pruned
from commsched.plan.model import Plan
from commsched.program.registry import STRATEGIES
from commsched.run.engine.messages import Mail
from commsched.run.engine.worker import Roles
from commsched.run.wire.device import moved
from commsched.train.assignment import Assignment, Settings
from commsched.train.early_bird import warm_up
from commsched.train.forward_backward import Score
from commsched.train.layers.layer import Gradients, TrainableNet
from commsched.train.neighbours import Neighbours
from commsched.train.optimizers import LossScale
from commsched.train.samples import Data
from commsched.train.workers.learner import checked, step_numbers
from commsched.train.workers.stage import OnStage, StageNet, stages_of

MOST = 65504.0  # the largest half
WORDS = ("values", "mean", "square")  # arrays of each tensor in a checkpoint, (n,) float32


class SamoWorker(OnStage):
    """A stage of a pruned net on one rank: kept parameters learn, the others are zero.

    A layer's gradient is packed at once, which drops pruned values. Microbatches are added in
    float16, in order. A step counts only if all values on all ranks are below 65504 / D (the
    largest float16 over D replicas): then no partial sum exceeds the range, apart from rounding.
    """

    alike, ahead = True, 1

    def __init__(self, assigned: Assignment) -> None:
        net, data, plan, settings, _, module, beat = assigned
        if settings.optimizer != "adam":
            raise CommschedError(
                f"strategy 'samo' updates with adam, got --optimizer {settings.optimizer}; leave it"
                " out"
            )
        _check(net, plan)
        self.net, self._plan = net, plan
        (self._stage,) = self._stages = stages_of(assigned, StageNet)
        self.rates, self._module = settings.rates(), module
        self._limit = MOST / len(self._stage.stage.ranks)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self.states: dict[str, Pruned] = {}
        start = start_of(net, data, plan, settings, self._stage.layers, beat)
        for name, values in start.items():
            index = mask_of(plan, settings.seed, name, values)
            here = None if index is None else self._module.asarray(index)
            state = pruned.prune(self._module.asarray(values).reshape(-1), here)
            self.states[name], self._shapes[name] = state, values.shape
            self._stage.used[name] = state.half.reshape(values.shape)
        self.mail: Mail | None = self
        self.scale = LossScale()
        self.skipped = 0  # steps that were left out
        self.report: Callable[[int, Score, bool], None] = lambda step, score, overflow: None
        self.overflowed: Callable[[int], bool] = lambda step: False
        self._closed = -1  # the last step that is known to count or to be skipped
        self._left_out = False  # whether that step is skipped
        self._score, self._overflow = Score(0.0, 0, 0), False  # of this step, here
        self._divisor = 1.0  # divisor of the step's sums
        self._results: dict[int, Array] = {}  # launch -> sum or mean

    def whole(self, others: Neighbours) -> Mapping[str, Array]:
        return self.values

    @property
    def values(self) -> Mapping[str, Array]:
        return {n: pruned.whole(s).reshape(self._shapes[n]) for n, s in self.states.items()}

    # For the engine

    def gradient(self, step: int, launch: int, out: Array) -> None:
        for name, there, here in self._plan.launches[launch].places:
            out[here] = self.states[name].packed[there]

    def result(self, step: int, launch: int, values: Array) -> None:
        self._results[launch] = values

    def vote(self, step: int) -> float:
        """Tell whether a sum of this step may exceed 16 bits."""
        return float(self._overflow)

    def follow(self, plan: Plan, kept: Mapping[str, Array]) -> None:
        self._plan = plan

    @property
    def roles(self) -> Roles:
        """Return the roles; parameters are not exchanged."""
        return Roles(self, voter=self)

    # For the compute stream

    def _begin_step(self) -> None:
        self._score, self._overflow = Score(0.0, 0, 0), False
        for state in self.states.values():
            state.packed.fill(0)

    def _add_gradients(self, gradients: Gradients) -> None:
        for name, gradient in gradients.items():
            pruned.pack(self.states[name], gradient.reshape(-1))

    def _end_step(self, step: int) -> None:
        """Check for gradients whose sums could overflow and must not be sent."""
        packed = [state.packed for state in self.states.values()]
        # one check for all sums, because each check waits for the device
        within = on_host(self._module.stack([(abs(each) < self._limit).all() for each in packed]))
        for each, fits in zip(packed, within.tolist(), strict=True):
            if not fits:
                self._overflow = True
                each.fill(0)
        self.report(step, self._score.as_numbers(), self._overflow)

    def _update_with(self, step: int, launch: int) -> None:
        """Update with a launch's sum, unless the ranks have agreed to skip the step."""
        self._conclude_step(step)
        planned = self._plan.launches[launch]
        if len(self._stage.stage.ranks) == 1:  # nothing was exchanged
            values = self._module.empty(self._plan.spec(planned).numel, np.float32)
            self.gradient(step, launch, values)
        else:
            values = self._results.pop(launch)
        if self._left_out:
            return
        count, rates = step - self.skipped + 1, AdamConstants(rate=self.rates.at(step))
        for name, there, here in planned.places:
            pruned.update(self.states[name], there, values[here], self._divisor, count, rates)

    def _conclude_step(self, step: int) -> None:
        """Decide, equally on all ranks, whether a step counts, and update the loss scale."""
        if step > self._closed:
            assert step == self._closed + 1, (step, self._closed)
            self._closed, self._left_out = step, self.overflowed(step)
            self._divisor = self.scale.value
            self.scale.after(self._left_out)
            self.skipped += self._left_out

    def settle(self) -> None:
        """Do nothing: results are applied in their own step."""

    # For checkpoints

    def state(self) -> tuple[dict[str, Any], dict[str, float]]:
        arrays = {"kept": self._all(), "masks": self._masks()}
        return moved(arrays, on_host), step_numbers(self.scale, self.skipped)

    def restore(self, tensors: object, scalars: Mapping[str, float], step: int) -> None:
        wanted, masks = self._all(), self._masks()
        parts = tensors if isinstance(tensors, dict) else {}
        found, there = checked(parts.get("kept"), wanted, scalars), parts.get("masks")
        if (
            not isinstance(there, dict)
            or there.keys() != masks.keys()
            or any(not np.array_equal(on_host(mask), there[name]) for name, mask in masks.items())
        ):
            raise CommschedError("the checkpoint holds other masks than this training")
        for name, arrays in wanted.items():
            for word, array in arrays.items():
                array[:] = self._module.asarray(found[name][word])
            pruned.compute_with(self.states[name], slice(None))
        self.scale = LossScale(scalars["scale"], int(scalars["good"]))
        self.skipped, self._closed = int(scalars["skipped"]), step - 1

    def _all(self) -> dict[str, dict[str, Array]]:
        return {n: {word: getattr(s, word) for word in WORDS} for n, s in self.states.items()}

    def _masks(self) -> dict[str, Array]:
        every = ((n, s.index) for n, s in self.states.items())
        return {n: index for n, index in every if not isinstance(index, slice)}


def start_of(
    net: TrainableNet,
    data: Data,
    plan: Plan,
    settings: Settings,
    layers: slice = slice(None),
    beat: Callable[[], None] = lambda: None,
) -> dict[str, Array]:
    """Return some layers' initial parameters, equal on every rank.

    beat: called after each step of a warm-up.
    """
    params = STRATEGIES[plan.strategy].settings(plan)
    if params["mask"] != "early-bird":
        return net.start(settings.seed, layers)
    kept = {n: t.numel for n, t in plan.net.tensors.items()}
    batch, rate, seed, most = settings.batch, settings.rate, settings.seed, int(params["warmup"])
    found = warm_up(net, data.train, kept, batch, rate, seed, most, beat)
    return {name: found[name] for layer in net.layers[layers] for name in layer.tensors}


def mask_of(plan: Plan, seed: int, name: str, values: Array) -> Array | None:
    """Choose the elements of a tensor to keep, by its initial values; None: all."""
    kept, params = plan.net.tensors[name].numel, STRATEGIES[plan.strategy].settings(plan)
    if kept == values.size:
        return None
    if params["mask"] == "random":
        drawn = random.generator(seed, 0, 0, f"{name}/mask")
        return pruned.random_mask(values.size, kept, drawn)
    return pruned.largest(values.reshape(-1), kept)


def _check(net: TrainableNet, plan: Plan) -> None:
    """Reject a plan for another net."""
    params, tensors = STRATEGIES[plan.strategy].settings(plan), plan.net.tensors
    share, whole = 1.0 - float(params["pruned"]), int(params["whole"])
    sizes = {name: prod(start.shape) for name, start in net.tensors.items()}
    kept = {n: size if size <= whole else pruned.kept_of(size, share) for n, size in sizes.items()}
    layers = [layer.name for layer in plan.net.layers]
    alike = layers == [layer.name for layer in net]
    if not alike or {name: tensor.numel for name, tensor in tensors.items()} != kept:
        raise CommschedError(
            f"the plan is for net {plan.net.name!r}, not for {net.name!r}: layers or tensors"
            " differ; plan what 'commsched profile' writes of it"
        )
