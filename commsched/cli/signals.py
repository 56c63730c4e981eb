"""End a command and its processes on a signal or a time limit, and save what it has found."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from time import process_time
from typing import NoReturn, TypeVar

from commsched.errors import TooLittleTime
from commsched.interrupts import AGAIN, dropped_interrupts, on_interrupt

FIRST_CALL, LAST_CALL = 1.05, 1.1  # share of an exceeded time limit at which interrupts come
MOST = 1.15  # share of a time limit after which optional parts of a result are left out


def end_well() -> None:
    """Make SIGTERM and SIGHUP unwind this process like an interrupt."""

    def stop(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, stop)


T = TypeVar("T")


class Spare:
    """Makes the optional parts of a result while a time limit allows, and lists the others."""

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
    """Interrupt the block, like Ctrl-C, twice: at 1.05 and 1.1 times `seconds`.

    A search that looks at the clock ends before. Seconds are processor time, so that a busy machine
    loses no result. None or 0: never interrupt.
    Yields a function that tells whether the block was interrupted.
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
    """Let only the first Ctrl-C interrupt the block; yield a function that ignores all later ones.

    The code after the first interrupt saves what was found, so it must end soon.
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
