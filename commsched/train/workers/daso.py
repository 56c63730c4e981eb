"""The worker of strategy `daso`, whose ranks are steps apart between two exchanges."""

from commsched.program.registry import STRATEGIES
from commsched.train.assignment import Assignment
from commsched.train.workers.learner import MOST_AHEAD, Learner


class DasoWorker(Learner):
    """Learns as others do, but nobody waits for its scores, nor for the bytes of what is late."""

    def __init__(self, assigned: Assignment) -> None:
        super().__init__(assigned)
        params = STRATEGIES[self._plan.strategy].settings(self._plan)
        skip, wait, most = (int(params[name]) for name in ("gs", "wait", "max_gs"))
        self.ahead = min(max(skip, most) + max(wait, most), MOST_AHEAD)
