"""The worker that trains a real net in a pipeline that flushes: strategies `gpipe` and `1f1b`."""

import numpy as np

from commsched.train.assignment import Assignment
from commsched.train.forward_backward import Score
from commsched.train.layers.layer import Gradients
from commsched.train.workers.learner import Learner
from commsched.train.workers.stage import OnStage, StageNet, stages_of


class PipelineWorker(OnStage, Learner):
    """A stage of a net on one rank, or several stages if they are interleaved.

    Gradients of microbatches are added in float32, in the order of their backwards.
    """

    parts: type[StageNet] = StageNet

    def __init__(self, assigned: Assignment) -> None:
        self._stages = stages_of(assigned, self.parts)
        first, *others = self._stages
        super().__init__(assigned, first.layers)
        for stage in others:
            self.add_parameters(self.net.start(self.settings.seed, stage.layers))
        for stage in self._stages:
            stage.used = self.used
        self.mail = self

    def _begin_step(self) -> None:
        self._gradients, self._score, self._overflow = {}, Score(0.0, 0, 0), False

    def _add_gradients(self, gradients: Gradients) -> None:
        total = self._gradients
        for name, gradient in gradients.items():
            own = self._unscaled(gradient)
            total[name] = total[name] + own if name in total else own

    def _end_step(self, step: int) -> None:
        self._report_step(step)

    def _update_with(self, step: int, launch: int) -> None:
        if self._plan.group(self._plan.launches[launch]).size == 1:  # nothing was exchanged
            numel = self._plan.spec(self._plan.launches[launch]).numel
            out = self._module.empty(numel, np.float32)
            self.gradient(step, launch, out)
            self.result(step, launch, out)
        self.apply(launch)
