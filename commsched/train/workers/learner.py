"""The worker that trains a real net: it performs layers in program order, and updates."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from commsched.arrays import Array
from commsched.errors import CommschedError
from commsched.exchange.sharded import own_places
from commsched.kernels.finite_check import cleared
from commsched.kernels.modules import on_host
from commsched.plan.model import Plan
from commsched.program.model import Kind, Op
from commsched.run.engine.messages import Mail
from commsched.run.engine.worker import Roles
from commsched.run.wire.device import moved
from commsched.train.assignment import Assignment
from commsched.train.forward_backward import ForwardBackward, Score, score
from commsched.train.layers.layer import Gradients, TrainableNet, as_float16
from commsched.train.neighbours import Neighbours
from commsched.train.optimizers import LossScale, find_optimizer
from commsched.train.sample_order import batch_of, part_of

AT_ONCE = 256  # samples that are scored together
MOST_AHEAD = 64  # steps whose scores may be under way


class Learner:
    """A net on one rank that performs the compute operations of an engine.

    Parameters and optimiser state of its `layers` are float32; with `half` they compute with copies
    in 16 bits. `report` takes a step's score and overflow on this rank; `overflowed` tells whether
    a step overflowed on any rank.
    """

    alike = True  # all ranks end with the same parameters
    ahead = 1  # steps whose scores may be under way

    def __init__(self, assigned: Assignment, layers: slice = slice(None)) -> None:
        net, self._data, plan, settings, self._rank, module, _ = assigned
        check_tensors(net, plan)
        self.asarray: Callable[[Array], Array] = module.asarray  # where the net computes
        self.net, self.settings, self.rates = net, settings, settings.rates()
        self._plan, self._module = plan, module
        self._index = {layer.name: i for i, layer in enumerate(net)}
        self.values: dict[str, Array] = {}
        self.kept: dict[str, dict[str, Array]] = {}  # tensor -> optimiser state by name
        self._optimizer = find_optimizer(settings.optimizer)
        self.scale = LossScale() if settings.half else LossScale(1.0)
        # launch -> the float32 parameters and the optimiser state of this rank's shard
        self._shards: dict[int, dict[str, Array]] = {}
        self.mail: Mail | None = None  # messages between single ranks
        self.skipped = 0  # skipped steps
        self.closed = -1  # the last step whose overflow is known
        self.report: Callable[[int, Score, bool], None] = lambda step, score, overflow: None
        self.overflowed: Callable[[int], bool] = lambda step: False
        summed = [launch for launch in plan.launches if launch.payload == "gradient"]
        # ranks whose gradients are summed, so that the result is the mean over all samples
        self._shares = plan.group(summed[0]).size if summed and not plan.mean else 1
        self._score, self._overflow = Score(0.0, 0, 0), False  # of the batch under way, here
        self._left_out = False  # whether the step `closed` was skipped
        self.used: dict[str, Array] = {}  # parameters that layers compute with
        self.add_parameters(net.start(settings.seed, layers))
        self._walk = ForwardBackward(net, self.used, module.zeros(0))
        self._targets: Array = None
        self._gradients: dict[str, Array] = {}
        self._results: dict[int, tuple[int, Array]] = {}  # launch -> step, sum or mean

    def add_parameters(self, start: Mapping[str, Array]) -> None:
        """Add further parameters to learn."""
        for name, values in start.items():
            self.values[name] = own = self.asarray(values)
            zeros = self._module.zeros_like
            self.kept[name] = {word: zeros(own) for word in self._optimizer.words}
        self.refresh()

    def _shard(self, launch: int) -> dict[str, Array]:
        """Return this rank's shard of a launch before the first step."""
        own = own_places(self._plan, launch, self._rank)
        parts = [flat(self.values[name])[at] for name, at, _ in own]
        values = self._module.concatenate([self._module.zeros(0, np.float32), *parts])
        zeros = self._module.zeros_like
        return {"value": values, **{word: zeros(values) for word in self._optimizer.words}}

    def refresh(self) -> None:
        """Let layers compute with the current parameters."""
        kind = np.float16 if self.settings.half else np.float32
        self.used.update({n: v.astype(kind, copy=False) for n, v in self.values.items()})

    # For the engine

    def gradient(self, step: int, launch: int, out: Array) -> None:
        for name, there, here in self._plan.launches[launch].places:
            out[here] = flat(self._gradients[name])[there]

    def result(self, step: int, launch: int, values: Array) -> None:
        self._results[launch] = step, values

    def parameters(self, step: int, launch: int, out: Array) -> None:
        for name, there, here in self._plan.launches[launch].places:
            out[here] = flat(self.values[name])[there]

    def replace(self, step: int, launch: int, values: Array) -> None:
        for name, there, here in self._plan.launches[launch].places:
            flat(self.values[name])[there] = values[here]
            self._refresh_piece(name, there)

    def _refresh_piece(self, name: str, there: slice) -> None:
        """Let layers compute with new values of a tensor's piece."""
        if self.settings.half:
            flat(self.used[name])[there] = flat(self.values[name])[there].astype(np.float16)

    def vote(self, step: int) -> float:
        """Return the loss of this rank's latest batch."""
        return self._score.loss / self._score.guesses

    @property
    def roles(self) -> Roles:
        """Return every role of an engine."""
        return Roles(self, self, self)

    def follow(self, plan: Plan, kept: Mapping[str, Array]) -> None:
        self._plan = plan  # results of the last step are of the same pieces

    # For the compute stream

    def perform(self, step: int, op: Op) -> None:
        """Do one operation of the compute stream."""
        with np.errstate(over="ignore", invalid="ignore"):  # gradients are checked later
            if op.kind is Kind.APPLY:
                self.apply(op.launch)
                return
            assert op.kind is Kind.COMPUTE, op
            assert op.turn is not None, op
            go = self._backward if op.turn.backward else self._forward
            go(step, self._index[op.layer])

    def _forward(self, step: int, index: int) -> None:
        if index == 0:
            self._begin(step)
        self._walk.forward(index)
        self._end_forward(step, index)

    def _end_forward(self, step: int, index: int) -> None:
        """Score the batch after the last layer."""
        if index == len(self.net.layers) - 1:
            self._conclude_step(step - 1)
            weight = self.scale.value / (self._targets.size * self._shares)
            self._score, self._overflow = self._walk.score(self._targets, weight), False

    def _begin(self, step: int) -> None:
        """Take this rank's part of a step's batch."""
        train, settings = self._data.train, self.settings
        chosen = batch_of(settings.seed, step, settings.batch, len(train))
        some = train.of(chosen[part_of(settings.batch, self._rank, self._plan.machine.size)])
        self._targets = self.asarray(some.targets)
        self._walk = ForwardBackward(self.net, self.used, self._on_device(some.inputs))

    def _on_device(self, inputs: Array) -> Array:
        return self.asarray(as_float16(inputs) if self.settings.half else inputs)

    def _backward(self, step: int, index: int) -> None:
        self._take_gradients(step, index, self._walk.backward(index))

    def _take_gradients(self, step: int, index: int, found: Gradients) -> None:
        """Store the gradients of a layer; after the first layer the step is over."""
        for name, gradient in found.items():
            self._gradients[name] = self._unscaled(gradient)
        if index == 0:
            self._report_step(step)

    def _report_step(self, step: int) -> None:
        """Report a step's score at its end, because the report waits for the device."""
        self._score, self._overflow = self._score.as_numbers(), bool(self._overflow)
        self.report(step, self._score, self._overflow)

    def _unscaled(self, gradient: Array) -> Array:
        """Return a gradient as float32, without the loss scale."""
        if not self.settings.half:
            return gradient
        found = gradient.astype(np.float32)
        found /= np.float32(self.scale.value)
        # All ranks skip a step with such gradients, which must not be sent.
        self._overflow = self._overflow | cleared(found)
        return found

    def _conclude_step(self, step: int) -> None:
        """Decide, equally on all ranks, whether a step counts, and update the loss scale."""
        if self.settings.half and step > self.closed:
            assert step == self.closed + 1, (step, self.closed)
            self.closed, self._left_out = step, self.overflowed(step)
            self.scale.after(self._left_out)
            self.skipped += self._left_out

    def apply(self, launch: int) -> None:
        """Update with a launch's result, unless it was applied already or its step is skipped."""
        step, values = self._results.pop(launch, (-1, None))
        if values is None:
            return
        self._conclude_step(step)
        if self._left_out:
            return
        count, rate = step - self.skipped, self.rates.at(step)
        if launch in self._shards:
            shard = self._shards[launch]
            self._optimizer.update(shard["value"], values, shard, count, rate)
            return
        for name, there, here in self._plan.launches[launch].places:
            kept = {word: flat(array)[there] for word, array in self.kept[name].items()}
            own = flat(self.values[name])[there]
            self._optimizer.update(own, values[here], kept, count, rate)
            self._refresh_piece(name, there)

    def settle(self) -> None:
        """Apply all results; no exchange may be under way."""
        for launch in sorted(self._results):
            self.apply(launch)

    def evaluate(self, others: Neighbours) -> Iterator[Score]:
        """Score this rank's part of the held-out samples; `others` is for stages."""
        held, size = self._data.held_out, self._plan.machine.size
        own = part_of(len(held), self._rank, size)
        for start in range(own.start, own.stop, AT_ONCE):
            some = held.of(np.arange(start, min(start + AT_ONCE, own.stop)))
            inputs, targets = self._on_device(some.inputs), self.asarray(some.targets)
            with np.errstate(over="ignore", invalid="ignore"):
                found = score(self.net, self.used, inputs, targets)
            yield found

    def whole(self, others: Neighbours) -> Mapping[str, Array]:
        """Return all parameters of this rank's layers, by tensor, float32."""
        return self.values

    # For checkpoints

    def state(self) -> tuple[dict[str, Any], dict[str, float]]:
        """Return this rank's arrays, and the common numbers; no exchange may be under way."""
        return moved(self._all(), on_host), step_numbers(self.scale, self.skipped)

    def restore(self, tensors: object, scalars: Mapping[str, float], step: int) -> None:
        """Restore what `state` returned before `step`; reject anything else."""
        wanted = self._all()
        values = checked(tensors, wanted, scalars)
        for name, arrays in wanted.items():
            for word, array in arrays.items():
                flat(array)[:] = self.asarray(flat(values[name][word]))
        self.refresh()
        self.scale = LossScale(scalars["scale"], int(scalars["good"]))
        self.skipped, self.closed = int(scalars["skipped"]), step - 1

    def _all(self) -> dict[str, dict[str, Array]]:
        """Return parameter and optimiser state of each tensor and of each shard."""
        shards = {self._plan.launches[i].name: shard for i, shard in self._shards.items()}
        return {**{n: {"value": v, **self.kept[n]} for n, v in self.values.items()}, **shards}


def step_numbers(scale: LossScale, skipped: int) -> dict[str, float]:
    """Return the numbers of a checkpoint: loss scale, good steps, skipped steps."""
    return {"scale": scale.value, "good": scale.good, "skipped": skipped}


def checked(
    tensors: object, wanted: Mapping[str, Any], scalars: Mapping[str, float]
) -> dict[str, dict[str, Array]]:
    """Reject a checkpoint whose tensors or numbers differ from the expected ones."""
    if not isinstance(tensors, dict) or shapes_of(tensors) != shapes_of(wanted):
        raise CommschedError("the checkpoint holds other tensors than this net")
    if scalars.keys() != {"scale", "good", "skipped"}:
        raise CommschedError("the checkpoint holds other numbers than this training")
    return tensors


def shapes_of(tensors: Mapping[str, Any]) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the shapes of float32 arrays; an impossible shape for anything else."""
    return {
        name: {
            word: tuple(a.shape) if getattr(a, "dtype", None) == np.float32 else (-1,)
            for word, a in (arrays if isinstance(arrays, dict) else {}).items()
        }
        for name, arrays in tensors.items()
    }


def flat(array: Array) -> Array:
    """Return a view of all elements in order."""
    return array.reshape(-1)


def check_tensors(net: TrainableNet, plan: Plan) -> None:
    """Reject a plan for another net."""
    graph = plan.net
    layers = [layer.name for layer in graph.layers]
    shapes = {name: tensor.shape for name, tensor in graph.tensors.items()}
    ours = {name: start.shape for name, start in net.tensors.items()}
    hint = f"the plan is for net {graph.name!r}, not for {net.name!r}"
    how = "plan what 'commsched profile' writes of it"
    if layers != [layer.name for layer in net] or set(shapes) != set(ours):
        raise CommschedError(f"{hint}: layers or tensors differ; {how}")
    for name, shape in ours.items():
        if shapes[name] != shape:
            raise CommschedError(
                f"{hint}: tensor {name!r} has shape {list(shapes[name])} there, {list(shape)}"
                f" here; {how}"
            )
