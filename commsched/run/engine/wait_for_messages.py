"""The pace of polling MPI for messages: without a pause during events, then ever less often."""

import os
import time

import numpy as np

from commsched.arrays import Array
from commsched.run.engine.waiting import SPARSE
from commsched.run.job.clock import now
from commsched.run.wire.path import Exchange, Unlocked

SPIN = 100e-6  # s of polling without a sleep after the last event
SHARE = 0.04  # a sleep's share of the time waited so far: on average messages seem 2 % longer
LONGEST = 1e-3  # s of sleep; longer ones would starve messages that MPI moves only during polls
NAP = 50e-6  # least s of sleep between polls beside a thread that computes on another core
PACE = np.array([SPARSE, SPIN, SHARE, 0.0, LONGEST])
NEVER = np.zeros(1, np.uint8)  # `changed` of callers that have nothing else to do


class Pacer:
    """Sleeps between polls; a blocking wait would occupy a core that other threads need.

    A sleep is a share of the time since the last event, so long messages are polled rarely.
    crowded: ranks outnumber cores. Then a waking thread takes the core from a computing one, of
    this rank or another, so each sleep beside computing has the longest duration.
    """

    def __init__(self, crowded: bool = False) -> None:
        self._quiet = now()
        self._nap = LONGEST if crowded else NAP
        self._beside_computing = np.array([SPARSE, 0.0, SHARE, self._nap, LONGEST])

    def busy(self) -> None:
        """Record that something happened: poll again at once."""
        self._quiet = now()

    def rest(self, beside_computing: bool = False) -> None:
        """Sleep because nothing happened: longer, the longer ago the last event.

        beside_computing: another thread of this rank computes. At a yield it would take the core
        until the system's next tick, often 4 ms; a timer ends a sleep in time.
        """
        waited = now() - self._quiet
        if waited < SPIN and not beside_computing:
            os.sched_yield()  # a sleep of 0 s lasts as long as the timer's slack
        else:
            least = self._nap if beside_computing else 0.0
            time.sleep(min(max(least, SHARE * waited), LONGEST))

    def wait(self, exchange: Unlocked, changed: Array, beside_computing: bool = False) -> bool:
        """Drive the only exchange that can progress, with pauses; return True if it is over.

        changed: (1,) uint8, not 0 once the caller has something else to do.
        """
        moves, pace = exchange.moves, self._beside_computing if beside_computing else PACE
        over = exchange.wait(pace, now() - self._quiet, changed)
        if exchange.moves != moves:
            self.busy()
        return over


def complete(exchange: Exchange) -> None:
    """Drive one exchange to its end, at the pace of the communication thread."""
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
