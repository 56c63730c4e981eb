"""A rank's stage of a real net: passes of microbatches through the stage, and their messages."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from commsched.arrays import Array
from commsched.errors import CommschedError
from commsched.kernels.modules import on_host
from commsched.plan.model import Plan
from commsched.program.message_coding import AS_THEY_ARE, coding_of
from commsched.program.model import Hop, Kind, Op
from commsched.program.recompute import cuts_of
from commsched.program.registry import STRATEGIES
from commsched.program.stages import Stage, grid
from commsched.run.wire.device import HOST, ComputeDevice, Event
from commsched.train.assignment import Assignment
from commsched.train.forward_backward import (
    ForwardBackward,
    RecomputingForwardBackward,
    Score,
    forward_through,
    score_of,
)
from commsched.train.layers.layer import (
    Gradients,
    TrainableLayer,
    TrainableNet,
    alone,
    as_float16,
    lent,
)
from commsched.train.neighbours import Neighbours
from commsched.train.optimizers import LossScale
from commsched.train.sample_order import batch_of, check_batch, part_of
from commsched.train.samples import Data, Samples
from commsched.train.workers.learner import AT_ONCE

Add = Callable[[Gradients], None]  # takes the gradients of one layer


class StageNet:
    """Consecutive layers of a net on one rank, which compute with the parameters `used`.

    Every replica of the pipeline learns its part of the batch, in microbatches of equal size.
    Messages are activations and their gradients, as the layers compute them.
    """

    def __init__(self, assigned: Assignment, stages: Sequence[Stage], number: int) -> None:
        net, data, plan, settings, rank, module, _ = assigned
        params = STRATEGIES[plan.strategy].settings(plan)
        self.net, self.settings = net, settings
        self.stage = stages[number]
        self.microbatches = int(params["microbatches"])
        self.used: dict[str, Array] = {}
        self._data, self._asarray = data, module.asarray
        self._place = self.stage.ranks.index(rank)
        self._replica, self._replicas = self._place // self.stage.width, self.stage.replicas
        self._shares = 1 if plan.mean else self._replicas
        self._sharing = plan.net.sequence  # number of ranks that share tokens
        first = sum(len(stage.trunk) for stage in stages[:number])
        self.layers = slice(first, first + len(self.stage.trunk))
        segments = int(
            params.get("recompute", 0)
        )  # number of recomputed segments; 0: keep all activations
        cuts = cuts_of(self.stage, segments)[:-1] if segments else ()
        self._starts = tuple(first + cut for cut in cuts)
        self._tells = number > 0  # whether the stage sends a gradient to the previous stage
        own = net.layers[self.layers]
        self._before, self._behind = (
            stages[k].ranks[self._place] if 0 <= k < len(stages) else -1
            for k in (number - 1, number + 1)
        )
        self._kind = np.dtype(np.float16 if settings.half else np.float32)
        check_batch(
            settings.batch, len(data.train), self._replicas * self.microbatches, "microbatches"
        )
        _check_borrowed(net, own)
        self._inputs, self._outputs = shapes_around(net, data, self.layers)
        shape = (self._samples, *self._of_tokens(self._outputs))
        _check_tokens(self._inputs, self._sharing)
        if not self.stage.last and self.stage.output != prod(shape) * self._kind.itemsize:
            raise CommschedError(_other_size(plan, self.stage, shape, self._kind))
        coding = coding_of(plan)
        if coding.name != AS_THEY_ARE and coding.width != self._kind.itemsize:
            raise CommschedError(
                f"the plan's messages={coding.name} codes values of {coding.width} B, but the"
                f" layers compute in {self._kind.name}; plan what 'commsched profile"
                f" {plan.net.name} --precision {'fp16' if settings.half else 'fp32'}' writes"
            )
        self._walks: dict[int, ForwardBackward] = {}  # by microbatch
        self._here: dict[tuple[int, Hop | None], Array] = {}  # (step, message) -> received values
        self._ready: dict[tuple[int, Hop | None], Array] = {}  # (step, message) -> values to send
        self._device: ComputeDevice = HOST
        self._read: deque[tuple[Event, Array]] = deque()  # received packets, until they are copied

    @property
    def _samples(self) -> int:
        """Return the number of samples of a microbatch."""
        return self.settings.batch // (self._replicas * self.microbatches)

    def forward(
        self, step: int, microbatch: int, scale: float
    ) -> Generator[Any, Array, Score | None]:
        """Take a microbatch through the layers; on the last stage, return its score.

        Yield the parts that tensor-parallel ranks must sum. Backward starts from the gradient of
        `scale` times the mean loss of the whole batch.
        """
        number, some = self.stage.number, self._samples_of(step, microbatch)
        if number == 0:
            inputs = self._on_device(self._own_tokens(some.inputs))
        else:
            inputs = self._fetch_message(step, Hop(number - 1, number, microbatch))
        walk = self._walks[microbatch] = self._walk(inputs)
        for index in range(self.layers.start, self.layers.stop):
            yield from walk.forward_sums(index)
        if not self.stage.last:
            self._post_message(step, Hop(number, number + 1, microbatch), walk.values)
            return None
        return self._judge(walk, some.targets, scale)

    def _walk(self, inputs: Array) -> ForwardBackward:
        if not self._starts:
            return ForwardBackward(self.net, self.used, inputs)
        return RecomputingForwardBackward(self.net, self.used, inputs, self._starts)

    def _judge(self, walk: ForwardBackward, targets: Array, scale: float) -> Score:
        """Score a microbatch after the last layer or a head; its backward begins there."""
        weight = scale / (targets.size * self.microbatches * self._shares)
        return walk.score(self._asarray(self._own_tokens(targets)), weight)

    def backward(self, step: int, microbatch: int, add: Add) -> Generator[Any, Array, None]:
        """Take a microbatch back; `add` each layer's gradients once they are complete.

        Yield the parts that tensor-parallel ranks must sum.
        """
        number, walk = self.stage.number, self._walks.pop(microbatch)
        self._enter_from_above(step, microbatch, walk, add)
        yield from self._backward_layers(walk, add)
        if self._tells:
            self._post_message(step, Hop(number, number - 1, microbatch), walk.above)

    def _enter_from_above(
        self, step: int, microbatch: int, walk: ForwardBackward, add: Add
    ) -> None:
        """Take the gradient from the next stage; with a head, `add` the head's own gradients."""
        if not self.stage.last:
            number = self.stage.number
            walk.above = self._fetch_message(step, Hop(number + 1, number, microbatch))

    def _backward_layers(self, walk: ForwardBackward, add: Add) -> Generator[Any, Array, None]:
        """Go back through the layers."""
        for index in reversed(range(self.layers.start, self.layers.stop)):
            add((yield from walk.backward_sums(index)))

    def _samples_of(self, step: int, microbatch: int) -> Samples:
        """Return the samples of a microbatch."""
        train, batch = self._data.train, self.settings.batch
        chosen = batch_of(self.settings.seed, step, batch, len(train))
        mine = chosen[part_of(batch, self._replica, self._replicas)]
        return train.of(mine[part_of(len(mine), microbatch, self.microbatches)])

    def own_rows(self, values: Array) -> Array:
        """Return this rank's tokens, (length / sharing, ...), of (length, ...)."""
        return values[part_of(len(values), self._place % self._sharing, self._sharing)]

    def _own_tokens(self, values: Array) -> Array:
        if self._sharing == 1:
            return values
        return np.ascontiguousarray(self.own_rows(values.swapaxes(0, 1)).swapaxes(0, 1))

    def _of_tokens(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0] // self._sharing, *shape[1:]) if self._sharing > 1 else shape

    def _on_device(self, inputs: Array) -> Array:
        return self._asarray(as_float16(inputs) if self.settings.half else inputs)

    # Messages

    def use_device(self, device: ComputeDevice) -> None:
        """Use arrays of this device for packets from now on."""
        self._device = device

    def _post_message(self, step: int, hop: Hop, values: Array) -> None:
        packet = values.astype(self._kind, copy=False).reshape(-1)
        self._ready[step, hop] = packet.view(np.uint8)

    def _fetch_message(self, step: int, hop: Hop) -> Array:
        """Return a message's content; activations and their gradients have equal shapes."""
        packet = self._here.pop((step, hop))
        if self._device is not HOST:
            packet = self._copy_packet(packet)
        return packet.view(self._kind).reshape(self._samples, *self._shape(hop))

    def _copy_packet(self, packet: Array) -> Array:
        """Copy a packet into memory of this thread's stream.

        Another stream may reuse the packet's own memory before the packet is read here.
        """
        found = packet.copy()
        self._read.append((self._device.mark(), packet))
        while self._read and self._read[0][0].done():
            self._read.popleft()
        return found

    def _shape(self, hop: Hop) -> tuple[int, ...]:
        return self._of_tokens(self._inputs if hop.source < self.stage.number else self._outputs)

    def outgoing(self, step: int, op: Op) -> Array:
        """Return the packet of a SEND."""
        return self._ready.pop((step, op.hop))

    def incoming(self, step: int, op: Op, packet: Array) -> None:
        """Take the packet of a RECV."""
        self._here[step, op.hop] = packet

    # For held-out samples

    @property
    def held_out(self) -> Iterator[Samples]:
        """Yield this rank's held-out samples, in parts that are scored together."""
        held = self._data.held_out
        own = part_of(len(held), self._place, len(self.stage.ranks))
        for start in range(own.start, own.stop, AT_ONCE):
            yield held.of(np.arange(start, min(start + AT_ONCE, own.stop)))

    def evaluate(self, some: Samples, others: Neighbours, used: Mapping[str, Array]) -> Score:
        """Score samples on the last stage; on other stages, pass on activations.

        used: the whole parameters of the stage.
        """
        if self._before < 0:
            values = self._on_device(some.inputs)
        else:
            there = np.empty((len(some), *self._inputs), self._kind)
            others.take(there, self._before)
            values = self._asarray(there)
        with np.errstate(over="ignore", invalid="ignore"):
            values = forward_through(self.net.layers[self.layers], used, values)
            if self._behind < 0:
                return score_of(values, self._asarray(some.targets))
        others.give(np.ascontiguousarray(on_host(values), self._kind), self._behind)
        return Score(0.0, 0, 0)


def stages_of(assigned: Assignment, make: type[StageNet]) -> list[StageNet]:
    """Make the stages of a rank."""
    plan, rank = assigned.plan, assigned.rank
    stages = grid(plan, STRATEGIES[plan.strategy].settings(plan))
    mine = [stage.number for stage in stages if rank in stage.ranks]
    return [make(assigned, stages, number) for number in mine]


def evaluated(
    stages: Sequence[StageNet], others: Neighbours, used: Mapping[str, Array]
) -> Iterator[Score]:
    """Score a rank's held-out samples, stage by stage; all ranks of a replica call it."""
    for some in stages[0].held_out:
        for stage in stages:
            yield stage.evaluate(some, others, used)


def _check_borrowed(net: TrainableNet, layers: Sequence[TrainableLayer]) -> None:
    """Reject a cut between layers that share a tensor."""
    for layer, name in lent(layers):
        raise CommschedError(
            f"net {net.name!r}: layer {layer!r} reads tensor {name!r} of another stage;"
            " nearest: stages=1, or a net that shares none"
        )


def _check_tokens(sample: tuple[int, ...], ranks: int) -> None:
    """Reject ranks that cannot have equally many tokens of a sample."""
    if ranks > 1 and sample[0] % ranks:
        raise CommschedError(
            f"sequence=1: {sample[0]} tokens of a sample do not divide among {ranks}"
            " tensor-parallel ranks; nearest: sequence=0"
        )


def shapes_around(
    net: TrainableNet, data: Data, layers: slice
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of one sample before and after some layers."""
    before = net.layers[: layers.start]
    own = net.layers[layers]
    starts = {n: start for layer in (*before, *own) for n, start in layer.tensors.items()}
    # Zeros of any shape in no memory: only the shapes count.
    zeros = {n: np.broadcast_to(np.float32(0), start.shape) for n, start in starts.items()}
    inputs = forward_through(before, zeros, data.train.of(np.arange(1)).inputs)
    return inputs.shape[1:], forward_through(own, zeros, inputs).shape[1:]


def _other_size(plan: Plan, stage: Stage, shape: tuple[int, ...], kind: "np.dtype[Any]") -> str:
    """Return the error that a plan's messages differ in size from the net's."""
    size = f"{' x '.join(map(str, shape))} {kind.name}"
    precision = " --precision fp16" if kind == np.float16 else ""
    return (
        f"the plan's messages from stage {stage.number} have {stage.output} B, but activations are"
        f" {size} there, {prod(shape) * kind.itemsize} B; plan what 'commsched profile"
        f" {plan.net.name} --batch {shape[0]}{precision}' writes, with message_bytes=0"
    )


class OnStage(ABC):
    """A worker for stages of a net: it computes microbatch by microbatch, then updates."""

    _stages: Sequence[StageNet]
    scale: LossScale
    _score: Score  # of this step, here
    _turns = 0  # forwards and backwards of this step, so far
    _paused = False  # True: within a turn

    @abstractmethod
    def _begin_step(self) -> None:
        """Drop the gradients of the previous step."""

    @abstractmethod
    def _add_gradients(self, gradients: Gradients) -> None:
        """Add the gradients of a layer from a microbatch."""

    @abstractmethod
    def _end_step(self, step: int) -> None:
        """Check the gradients and report, after all microbatches."""

    @abstractmethod
    def _update_with(self, step: int, launch: int) -> None:
        """Apply the sum of a launch."""

    def perform(self, step: int, op: Op) -> None:
        """Perform one operation of the compute stream, whose inputs are complete."""
        with np.errstate(over="ignore", invalid="ignore"):  # gradients are checked later
            if op.kind is Kind.APPLY:
                self._update_with(step, op.launch)
                return
            if self._turns == 0 and not self._paused:
                self._begin_step()
            self._paused = not self._microbatch(step, op)
            if self._paused:
                return
            turns = 2 * len(self._stages) * self._stages[0].microbatches
            self._turns = (self._turns + 1) % turns
            if self._turns == 0:
                self._end_step(step)

    def _microbatch(self, step: int, op: Op) -> bool:
        """Run a forward or backward; tell whether it is over."""
        alone(self._turn(step, op))
        return True

    def _turn(self, step: int, op: Op) -> Generator[Any, Array, None]:
        """Run a forward or backward; yield the parts that tensor-parallel ranks must sum."""
        assert op.turn is not None, op
        stage, microbatch = self._stages[op.turn.chunk], op.turn.microbatch
        if op.turn.backward:
            yield from stage.backward(step, microbatch, self._add_gradients)
            return
        score = yield from stage.forward(step, microbatch, self.scale.value)
        self._score = self._score.plus(score) if score else self._score

    def evaluate(self, others: Neighbours) -> Iterator[Score]:
        yield from evaluated(self._stages, others, self._stages[0].used)

    def compute(self, step: int, op: Op) -> None:
        self.perform(step, op)

    def use_device(self, device: ComputeDevice) -> None:
        for stage in self._stages:
            stage.use_device(device)

    def outgoing(self, step: int, op: Op) -> Array:
        assert op.hop is not None, op
        return self._on(op.hop.source).outgoing(step, op)

    def incoming(self, step: int, op: Op, packet: Array) -> None:
        assert op.hop is not None, op
        self._on(op.hop.to).incoming(step, op, packet)

    def _on(self, number: int) -> StageNet:
        return next(each for each in self._stages if each.stage.number == number)
