"""The worker that trains a real net in a pipeline that flushes: strategies `gpipe` and `1f1b`."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from commsched.plan.model import Plan
from commsched.program.model import Kind, Op
from commsched.program.stages import turn_of
from commsched.train.forward_backward import Score
from commsched.train.layers.layer import Gradients, TrainableNet
from commsched.train.samples import Data
from commsched.train.workers.learner import Learner, Settings
from commsched.train.workers.stage import OnStage, StageNet


class PipelineWorker(OnStage, Learner):
    """A stage of a net on one rank: microbatches as the program says, then the update.

    Gradients of microbatches are added in float32, in the order of their backwards.
    """

    parts: type[StageNet] = StageNet

    def __init__(
        self,
        net: TrainableNet,
        data: Data,
        plan: Plan,
        settings: Settings,
        rank: int,
        module: Any = np,
    ) -> None:
        self._stage = self.parts(net, data, plan, settings, rank, module)
        super().__init__(net, data, plan, settings, rank, module, self._stage.layers)
        self._stage.used = self.used
        self.mail = self
        self._turns = 0  # of this step, so far

    def perform(self, step: int, op: Op) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # gradients are looked at
            if op.kind is Kind.APPLY:
                self._take_own(step, op.launch)
                self.apply(op.launch)
                return
            if self._turns == 0:
                self._gradients, self._score, self._overflow = {}, Score(0.0, 0, 0), False
            backward, microbatch = turn_of(op.name)
            if backward:
                self._add(self._stage.backward(step, microbatch))
            else:
                found = self._stage.forward(step, microbatch, self.scale.value)
                self._score = self._score.plus(found) if found else self._score
            self._turns = (self._turns + 1) % (2 * self._stage.microbatches)
        if self._turns == 0:
            self._tell(step)

    def _add(self, gradients: Iterable[Gradients]) -> None:
        """Add up a microbatch's gradients."""
        total = self._gradients
        for found in gradients:
            for name, gradient in found.items():
                own = self._unscaled(gradient)
                total[name] = total[name] + own if name in total else own

    def _take_own(self, step: int, launch: int) -> None:
        """The sum over the replicas where there is only one: nothing was exchanged."""
        if len(self._stage.stage.ranks) == 1:
            numel = self._plan.spec(self._plan.launches[launch]).numel
            out = self._module.empty(numel, np.float32)
            self.gradient(step, launch, out)
            self.result(step, launch, out)
