"""Poll MPI for messages: without a pause while something happens, then less and less often."""

import time

from commsched.run.job.clock import now
from commsched.run.wire.path import Exchange

SPIN = 100e-6  # s of polling without a sleep after the last event
LONGEST = 200e-6  # s, the longest sleep while an exchange is under way
FIRST, GROWTH = 20e-6, 1.5  # s, and by how much each sleep is longer than the one before


class Pacer:
    """Sleeps between polls; a blocking wait would occupy a core that other threads need."""

    def __init__(self) -> None:
        self._quiet = now()
        self._pause = 0.0

    def busy(self) -> None:
        """Note that something happened: poll again at once."""
        self._quiet, self._pause = now(), 0.0

    def rest(self) -> None:
        """Sleep because nothing happened, longer each time."""
        if now() - self._quiet < SPIN:
            time.sleep(0)
            return
        self._pause = min(LONGEST, max(FIRST, self._pause * GROWTH))
        time.sleep(self._pause)


def complete(exchange: Exchange) -> None:
    """Drive one exchange to its end, as the communication thread does."""
    pacer, seen = Pacer(), -1
    while not exchange.progress():
        if exchange.moves != seen:
            seen = exchange.moves
            pacer.busy()
        else:
            pacer.rest()
