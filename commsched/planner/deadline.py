"""The processor time that a search may use."""

import time
from collections.abc import Callable
from math import inf

Clock = Callable[[], float]  # s
Check = Callable[[], None]  # raises an error to end a search


def go_on() -> None:
    """Do nothing: a search with this check never ends early."""


class OutOfTime(Exception):
    """Raised when a search has only the time for its last simulations left."""


class Deadline:
    """An end `limit` s from now; None: no end.

    The clock shows this thread's processor time, so a search does as much on a busy machine.
    """

    def __init__(self, limit: float | None = None, clock: Clock = time.thread_time) -> None:
        self.limit = limit
        self.now = clock
        self._end = inf if limit is None else clock() + limit

    def left(self) -> float:
        """Return the seconds until the end; not above 0 once it has passed."""
        return self._end - self.now()

    def over(self) -> bool:
        """Tell whether the end has passed."""
        return self.left() <= 0.0

    def passed(self) -> "Deadline":
        """Return this deadline with an end that has passed."""
        found = Deadline(self.limit, self.now)
        found._end = -inf
        return found
