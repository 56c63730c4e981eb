"""Merges on one rank: what a launch has summed, into the parameters that the worker has now."""

import numpy as np

from commsched.arrays import Array
from commsched.plan.model import Plan
from commsched.program.model import Op
from commsched.program.registry import STRATEGIES
from commsched.program.strategy import State
from commsched.run.engine.worker import ParameterHolder


class Merges:
    """What a rank keeps from merge to merge, by launch."""

    def __init__(self, plan: Plan, holder: ParameterHolder | None) -> None:
        self._plan = plan
        self._holder = holder
        self._local: dict[int, Array] = {}  # launch -> (numel,) float32, memory to work in
        self.states: dict[int, State] = {}  # launch -> what its strategy keeps

    def merge(self, step: int, op: Op, total: Array) -> None:
        """Merge a launch's sum, (numel,) float32, over its team."""
        if op.launch not in self._local:
            self._local[op.launch] = np.empty_like(total)
        local = self._local[op.launch]
        assert self._holder is not None
        self._holder.parameters(step, op.launch, local)
        state = self.states.setdefault(op.launch, {})
        STRATEGIES[self._plan.strategy].merge(self._plan, op, local, total, state)
        self._holder.replace(step, op.launch, local)
