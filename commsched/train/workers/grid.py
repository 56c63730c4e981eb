"""The worker of `tensor` and `3d`: a rank has a part of a stage's layers, and shards."""

from collections.abc import Generator, Iterator, Mapping
from typing import Any

import numpy as np

from commsched.arrays import Array
from commsched.exchange.registry import find_method
from commsched.exchange.sharded import shard_of
from commsched.program.model import Op
from commsched.program.units import GATHER
from commsched.train.assignment import Assignment
from commsched.train.forward_backward import Score
from commsched.train.layers.layer import Gather, Own
from commsched.train.neighbours import Neighbours
from commsched.train.workers.learner import flat
from commsched.train.workers.pipeline import PipelineWorker
from commsched.train.workers.stage import evaluated
from commsched.train.workers.team import Team

Going = Generator[Any, Array, None]  # a turn: yields parts, receives the whole


class GridWorker(PipelineWorker):
    """A worker with parts of parameters; a turn (forward or backward) pauses for sums of the team.

    If the team shares tokens, a turn also pauses to gather all tokens. These are ordered by
    position and then by sample, so that each rank has one run of positions, as in Megatron-LM.
    Under zero=1 the worker has optimiser state and float32 values of its own shards only.
    """

    def __init__(self, assigned: Assignment) -> None:
        self._width = assigned.plan.net.tensor
        self._team = Team(assigned.net, assigned.rank, self._width, experts=False)
        super().__init__(assigned._replace(net=self._team.part()))
        self._going: Going | None = None  # the turn under way
        self._part: Array = None  # the part for the team's sum or gather
        self._came: Array = None
        self._sharing = assigned.plan.net.sequence > 1
        launches = assigned.plan.launches
        mine = [i for i, x in enumerate(launches) if x.pieces and x.pieces[0].tensor in self.values]
        self._shards = {
            i: self._shard(i)
            for i in mine
            if launches[i].payload == "gradient" and find_method(launches[i].method).sharded
        }
        by_pieces = {launches[i].pieces: i for i in self._shards}
        self._shard_of = {i: by_pieces[launches[i].pieces] for i in mine if self._shards}
        for name in [piece.tensor for i in self._shards for piece in launches[i].pieces]:
            self.kept[name] = {}

    # Turns

    def _microbatch(self, step: int, op: Op) -> bool:
        """Run a turn until its next exchange; tell whether the turn is over."""
        answer = None if self._going is None else self._came
        going = self._going = self._turn(step, op) if self._going is None else self._going
        try:
            while (answer := self._here(going.send(answer))) is not None:
                pass
        except StopIteration:
            self._going = None
        return self._going is None

    def _here(self, wanted: Any) -> Array:
        """Return the values for a turn if this rank has them; else set `_part` for an exchange."""
        if isinstance(wanted, Own):
            return self._stages[0].own_rows(wanted.values)
        gather = isinstance(wanted, Gather)
        part = wanted.values if gather else wanted
        if self._width == 1 or (gather and not self._sharing):
            return part
        self._part = part
        return None

    # For the engine

    def gradient(self, step: int, launch: int, out: Array) -> None:
        planned = self._plan.launches[launch]
        if planned.payload == "activation":
            own = self._part.swapaxes(0, 1) if self._sharing else self._part
            gathers = planned.purpose == GATHER
            out[shard_of(self._plan, launch, self._rank) if gathers else slice(None)] = flat(own)
            return
        super().gradient(step, launch, out)
        if self._plan.mean and self._sharing:  # mean over replicas, sum over the team's tokens
            out *= np.float32(self._plan.group(planned).size // self._stages[0].stage.replicas)

    def result(self, step: int, launch: int, values: Array) -> None:
        if self._plan.launches[launch].payload != "activation":
            super().result(step, launch, values)
            return
        came, shape = values.astype(self._part.dtype), self._part.shape
        if not self._sharing:
            self._came = came.reshape(shape)
            return
        places = came.reshape(-1, shape[0], *shape[2:]).swapaxes(0, 1)
        self._came = self._module.ascontiguousarray(places)

    def parameters(self, step: int, launch: int, out: Array) -> None:
        own = self._shards[self._shard_of[launch]]["value"]
        out[shard_of(self._plan, launch, self._rank)] = own

    # Between steps

    def whole(self, others: Neighbours) -> Mapping[str, Array]:
        """Return the parameters of this stage, put together from the parts of its team."""
        return self._team.whole(self.values, others, self.asarray)

    def evaluate(self, others: Neighbours) -> Iterator[Score]:
        kind = np.float16 if self.settings.half else np.float32
        used = {n: v.astype(kind, copy=False) for n, v in self.whole(others).items()}
        yield from evaluated(self._stages, others, used)
