"""The worker of strategy `daso`, whose ranks may be steps apart between two exchanges."""

from commsched.program.registry import STRATEGIES
from commsched.train.assignment import Assignment
from commsched.train.workers.learner import MOST_AHEAD, Learner


class DasoWorker(Learner):
    """A learner whose scores and bytes are logged only when the exchanges of a step have ended.

    So ranks need not wait for each other in every step, except in 16 bits, where all ranks skip a
    step together.
    """

    def __init__(self, assigned: Assignment) -> None:
        super().__init__(assigned)
        params = STRATEGIES[self._plan.strategy].settings(self._plan)
        skip, wait, most = (int(params[name]) for name in ("gs", "wait", "max_gs"))
        # Most steps until the next exchange begins, plus steps until it is merged.
        self.ahead = min(max(skip, most) + max(wait, most), MOST_AHEAD)
