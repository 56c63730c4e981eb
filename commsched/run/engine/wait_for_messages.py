"""Poll MPI for messages: without a pause while something happens, then less and less often."""

import os
import time

import numpy as np

from commsched.arrays import Array
from commsched.run.engine.waiting import SPARSE
from commsched.run.job.clock import now
from commsched.run.wire.path import Exchange, Unlocked

SPIN = 100e-6  # s of polling without a sleep after the last event
SHARE = 0.04  # a sleep's share of what has been waited: on average messages seem 2 % longer
LONGEST = 1e-3  # s of sleep: what MPI moves only while it is asked must not starve
NAP = 50e-6  # s of sleep between polls beside a thread that computes on a core of its own, at least
PACE = np.array([SPARSE, SPIN, SHARE, 0.0, LONGEST])
NEVER = np.zeros(1, np.uint8)  # for callers that have nothing else to do


class Pacer:
    """Sleeps between polls; a blocking wait would occupy a core that other threads need.

    Long messages are asked for rarely: a sleep is a share of the time since the last event.
    crowded: ranks outnumber cores. A thread that wakes takes the core from one that computes, of
    this rank or another; there each sleep beside computing is the longest.
    """

    def __init__(self, crowded: bool = False) -> None:
        self._quiet = now()
        self._nap = LONGEST if crowded else NAP
        self._beside_computing = np.array([SPARSE, 0.0, SHARE, self._nap, LONGEST])

    def busy(self) -> None:
        """Note that something happened: poll again at once."""
        self._quiet = now()

    def rest(self, beside_computing: bool = False) -> None:
        """Sleep because nothing happened, the longer the longer that lasts.

        beside_computing: another thread of this rank computes. It would take the core at a yield,
        and keep it until the system looks again, every 4 ms on many; a timer ends a sleep in time.
        """
        waited = now() - self._quiet
        if waited < SPIN and not beside_computing:
            os.sched_yield()  # a sleep of 0 s lasts as long as the timer's slack
        else:
            least = self._nap if beside_computing else 0.0
            time.sleep(min(max(least, SHARE * waited), LONGEST))

    def wait(self, exchange: Unlocked, changed: Array, beside_computing: bool = False) -> bool:
        """Rest, and let an exchange go on meanwhile if nothing else can; True if it is over.

        changed: (1,) uint8, not 0 once the caller has something else to do.
        """
        moves, pace = exchange.moves, self._beside_computing if beside_computing else PACE
        over = exchange.wait(pace, now() - self._quiet, changed)
        if exchange.moves != moves:
            self.busy()
        return over


def complete(exchange: Exchange) -> None:
    """Drive one exchange to its end, as the communication thread does."""
    if isinstance(exchange, Unlocked):
        if not exchange.wait(PACE, 0.0, NEVER):
            pacer = Pacer()
            while not pacer.wait(exchange, NEVER):
                pass
        return
    pacer, seen = Pacer(), -1
    while not exchange.progress():
        if exchange.moves != seen:
            seen = exchange.moves
            pacer.busy()
        else:
            pacer.rest()
