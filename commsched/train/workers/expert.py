"""The worker of `expert`: a rank has some of the experts, and all other parameters."""

from collections.abc import Generator, Iterator, Mapping
from typing import Any

import numpy as np

from commsched.arrays import Array
from commsched.errors import CommschedError
from commsched.train.assignment import Assignment
from commsched.train.forward_backward import Score
from commsched.train.neighbours import Neighbours
from commsched.train.workers.learner import Learner, flat
from commsched.train.workers.team import Team

Going = Generator[Array, Array, Any]  # a layer: yields tokens, receives arrived ones


class ExpertWorker(Learner):
    """A learner whose layers of experts pause to send tokens, and continue with arrived tokens."""

    def __init__(self, assigned: Assignment) -> None:
        plan = assigned.plan
        self._width = plan.net.experts
        self._team = Team(assigned.net, assigned.rank, self._width, experts=True)
        super().__init__(assigned._replace(net=self._team.part()))
        if not plan.mean:
            self._shares = plan.machine.size
        self._going: Going | None = None  # the layer under way
        self._part: Array = None  # tokens to exchange
        self._came: Array = None

    def _paused(self, going: Going) -> bool:
        """Run a layer until it exchanges tokens; tell whether the layer is not over."""
        first = self._going is None
        self._going = going if self._going is None else self._going
        try:
            self._part = self._going.send(None if first else self._came)
        except StopIteration as end:
            self._going, self._came = None, end.value
        return self._going is not None

    def _travels(self, index: int) -> bool:
        return self._width > 1 and self.net.layers[index].name in self._plan.net.experts_of

    def _forward(self, step: int, index: int) -> None:
        if not self._travels(index):
            super()._forward(step, index)
        elif not self._paused(self._walk.forward_sums(index)):
            self._end_forward(step, index)

    def _backward(self, step: int, index: int) -> None:
        if not self._travels(index):
            super()._backward(step, index)
        elif not self._paused(self._walk.backward_sums(index)):
            self._take_gradients(step, index, self._came)

    # For the engine

    def gradient(self, step: int, launch: int, out: Array) -> None:
        planned = self._plan.launches[launch]
        if planned.payload != "activation":
            super().gradient(step, launch, out)
            if self._plan.mean and planned.split > 1:  # experts have the sum of the team's means
                out /= np.float32(self._width)
            return
        if out.size != self._part.size:
            raise CommschedError(
                f"the plan's launch {planned.name!r} has {out.size} elements, but the net's tokens"
                f" take {self._part.size}; plan with the net's own capacity and --batch"
            )
        out[:] = flat(self._part)

    def result(self, step: int, launch: int, values: Array) -> None:
        if self._plan.launches[launch].payload != "activation":
            super().result(step, launch, values)
            return
        self._came = values.astype(self._part.dtype, copy=False).reshape(self._part.shape)

    # Between steps

    def whole(self, others: Neighbours) -> Mapping[str, Array]:
        return self._team.whole(self.values, others, self.asarray)

    def evaluate(self, others: Neighbours) -> Iterator[Score]:
        kind, part = np.float16 if self.settings.half else np.float32, self.used
        whole = self.whole(others)
        self.used = {n: v.astype(kind, copy=False) for n, v in whole.items()}
        yield from super().evaluate(others)
        self.used = part
