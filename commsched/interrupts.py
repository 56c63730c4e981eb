"""What Ctrl-C does in a block."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread


@contextmanager
def on_interrupt(do: Callable[[], None]) -> Iterator[None]:
    """Call `do` at Ctrl-C, unless the program around the block has a rule of its own for it."""
    before = signal.getsignal(signal.SIGINT)
    ours = before is signal.default_int_handler and current_thread() is main_thread()
    if ours:
        signal.signal(signal.SIGINT, lambda *_: do())
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)
