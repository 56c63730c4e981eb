"""The worker of strategy `daso`, whose ranks are steps apart between two exchanges."""

from commsched.program.registry import STRATEGIES
from commsched.train.assignment import Assignment
from commsched.train.workers.learner import MOST_AHEAD, Learner


class DasoWorker(Learner):
    """Learns as others do, but its scores and bytes are logged when the exchanges of a step ended.

    So ranks do not wait for each other in every step, but with 16 bits, where all skip together.
    """

    def __init__(self, assigned: Assignment) -> None:
        super().__init__(assigned)
        params = STRATEGIES[self._plan.strategy].settings(self._plan)
        skip, wait, most = (int(params[name]) for name in ("gs", "wait", "max_gs"))
        # Steps until the next exchange begins, and further ones until it is merged, at most.
        self.ahead = min(max(skip, most) + max(wait, most), MOST_AHEAD)
