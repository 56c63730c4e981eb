"""Drift counts spans that other threads hand over while it looks at older steps."""

import numpy as np

from commsched.run.adapt.drift import Drift
from commsched.timeline.model import Span


class Gathered:
    """Keeps what is asked for, in place of a communicator's ranks."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, float]] = []

    def ask(self, step: int, mine: np.ndarray) -> None:
        self.asked.append((int(step), float(mine.sum())))


def span(step: int) -> Span:
    return Span(0, "inside", "b0/exchange", step, 1.0, 1.5, 0.0, 0)


def test_a_span_that_ends_while_older_steps_are_dropped_is_counted():
    drift = Drift.__new__(Drift)  # the ranks and the engine around it have no part in this
    drift._launch, drift._expected, drift._lasted = {"b0/exchange": 0}, np.ones(1), {}
    drift._gather = gathered = Gathered()

    class Interrupted(int):
        """A step at which another thread hands over the span of a later one."""

        def __lt__(self, other: object) -> bool:
            drift._take(span(7))
            return int(self) < other

        __hash__ = int.__hash__

    for step in (2, 3, 4, 5):
        drift._take(span(Interrupted(step)))
    drift._ask(5)
    assert gathered.asked == [(5, 0.5)]
    assert list(drift._lasted) == [7]
