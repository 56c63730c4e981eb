"""End a command together with the processes that it has started; finish what it has done."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import NoReturn


def end_well() -> None:
    """Make SIGTERM and SIGHUP unwind this process like an interrupt."""

    def stop(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, stop)


@contextmanager
def one_interrupt() -> Iterator[Callable[[], None]]:
    """Let only the first Ctrl-C interrupt the block; yield a function after which none does.

    What follows an interrupt has to end soon: it brings what was found into safety.
    """
    left = 1

    def interrupt(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    def hold() -> None:
        nonlocal left
        left = 0

    before = signal.getsignal(signal.SIGINT)
    ours = before is signal.default_int_handler and current_thread() is main_thread()
    if ours:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield hold
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)
