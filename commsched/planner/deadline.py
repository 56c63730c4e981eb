"""The processor time that a search has."""

import time
from collections.abc import Callable
from math import inf

Clock = Callable[[], float]  # s
Check = Callable[[], None]  # raises an error to end a search


def go_on() -> None:
    """Let a search go on."""


class OutOfTime(Exception):
    """A search has no time left but for its last simulations."""


class Deadline:
    """`limit` s from now on; None: no end.

    The clock shows this thread's processor time: on a busy machine a search does as much.
    """

    def __init__(self, limit: float | None = None, clock: Clock = time.thread_time) -> None:
        self.limit = limit
        self.now = clock
        self._end = inf if limit is None else clock() + limit

    def left(self) -> float:
        """Seconds until the end; not above 0 once it has passed."""
        return self._end - self.now()

    def over(self) -> bool:
        """Tell whether the end has passed."""
        return self.left() <= 0.0

    def passed(self) -> "Deadline":
        """Return this deadline with an end that has passed."""
        found = Deadline(self.limit, self.now)
        found._end = -inf
        return found
