"""The worker of strategy `shadow`, which learns by itself and merges averages."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from commsched.arrays import Array
from commsched.kernels.modules import on_host
from commsched.program.model import Kind, Op
from commsched.program.registry import STRATEGIES
from commsched.train.assignment import Assignment
from commsched.train.optimizers import LossScale
from commsched.train.workers.learner import MOST_AHEAD, Learner, flat


class ShadowWorker(Learner):
    """A learner that updates with its own gradients, so ranks have different parameters.

    If 16-bit gradients overflow on a rank, only that rank skips the step. So each rank has its own
    loss scale.
    """

    alike = False

    def __init__(self, assigned: Assignment) -> None:
        self._numbers = assigned.module.zeros(3, np.float32)  # loss scale, good and skipped steps
        super().__init__(assigned)
        params = STRATEGIES[self._plan.strategy].settings(self._plan)
        self.ahead = min(int(params["every"]) + int(params["lag"]), MOST_AHEAD)

    def perform(self, step: int, op: Op) -> None:
        if op.kind is not Kind.APPLY:
            super().perform(step, op)
        elif not self._left_out_here(step):
            with np.errstate(over="ignore", invalid="ignore"):  # parameters are checked later
                self._update(step)

    def _left_out_here(self, step: int) -> bool:
        """Tell whether a step's gradients have overflowed, and adapt the loss scale."""
        self.closed = step
        if self.settings.half:
            self.scale.after(self._overflow)
            self.skipped += self._overflow
        return self._overflow

    def _update(self, step: int) -> None:
        """Move all parameters by the gradients of this rank."""
        count, rate = step - self.skipped, self.rates.at(step)
        for name, values in self.values.items():
            kept = {word: flat(array) for word, array in self.kept[name].items()}
            gradient = flat(self._gradients[name])
            self._optimizer.update(flat(values), gradient, kept, count, rate)
        self.refresh()

    def state(self) -> tuple[dict[str, Any], dict[str, float]]:
        numbers = [self.scale.value, self.scale.good, self.skipped]
        self._numbers[:] = self.asarray(np.array(numbers, np.float32))
        return super().state()

    def restore(self, tensors: object, scalars: Mapping[str, float], step: int) -> None:
        super().restore(tensors, scalars, step)
        value, good, skipped = on_host(self._numbers).tolist()
        self.scale, self.skipped = LossScale(value, int(good)), int(skipped)

    def _all(self) -> dict[str, dict[str, Array]]:
        return super()._all() | {"": {"numbers": self._numbers}}
