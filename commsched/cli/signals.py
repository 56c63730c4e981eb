"""End a command together with the processes that it has started; finish what it has done."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from time import process_time
from typing import NoReturn, TypeVar

from commsched.errors import TooLittleTime
from commsched.interrupts import AGAIN, dropped_interrupts, on_interrupt

FIRST_CALL, LAST_CALL = 1.05, 1.1  # of a time limit that a search has not kept
MOST = 1.15  # of a time limit: what the result can do without has ended


def end_well() -> None:
    """Make SIGTERM and SIGHUP unwind this process like an interrupt."""

    def stop(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, stop)


T = TypeVar("T")


class Spare:
    """Parts of a result that it can do without, and which of them a time limit has left out."""

    def __init__(self, limit: float | None) -> None:
        self.limit = limit  # s of processor time from now on; None or 0: all parts are made
        self.left_out: list[str] = []
        self._ends = process_time() + MOST * (limit or 0.0)

    def made(self, what: str, make: Callable[[], T], otherwise: T) -> T:
        """Make a part unless the time is over before it is made."""
        if not self.limit:
            return make()
        left = self._ends - process_time()
        if left > 0:
            with time_limit(left / LAST_CALL) as over:
                try:
                    return make()
                except TooLittleTime:
                    pass
                except KeyboardInterrupt:
                    if not over():
                        raise
                    self._ends = 0.0
        self.left_out.append(what)
        return otherwise


@contextmanager
def time_limit(seconds: float | None) -> Iterator[Callable[[], bool]]:
    """Interrupt the block like Ctrl-C soon after a limit of processor time, and again soon after.

    What looks at the clock itself has ended before. Processor time: on a busy machine nothing is
    lost that would have been in time. 0: what is made first is taken, however long it takes.
    Yields a function that tells whether it has interrupted.
    """
    if not seconds or current_thread() is not main_thread():
        yield lambda: False
        return
    calls, last = 0, KeyboardInterrupt()

    def interrupt(*_: object) -> None:
        nonlocal calls, last
        calls += 1
        signal.setitimer(signal.ITIMER_PROF, (LAST_CALL - FIRST_CALL) * seconds * (calls == 1))
        last = KeyboardInterrupt()
        raise last

    def again(error: BaseException) -> bool:
        nonlocal calls
        if error is not last:
            return False
        calls -= 1
        signal.setitimer(signal.ITIMER_PROF, AGAIN)
        return True

    before = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, seconds * FIRST_CALL)
    try:
        with dropped_interrupts(again):
            yield lambda: calls > 0
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def one_interrupt() -> Iterator[Callable[[], None]]:
    """Let only the first Ctrl-C interrupt the block; yield a function after which none does.

    What follows an interrupt has to end soon: it brings what was found into safety.
    """
    left = 1

    def interrupt() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    def hold() -> None:
        nonlocal left
        left = 0

    with on_interrupt(interrupt):
        yield hold
