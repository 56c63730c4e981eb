"""The effect of Ctrl-C in a block, and the interrupts that Python drops."""

import _thread
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from time import sleep

AGAIN = 1e-3  # s until a dropped interrupt is raised again: the callback that dropped it has ended


@contextmanager
def dropped_interrupts(again: Callable[[BaseException], bool]) -> Iterator[None]:
    """Call `again` with an interrupt that Python only prints, as in a weak reference's callback.

    again: returns whether the interrupt will be raised again.
    """
    before = sys.unraisablehook

    def hook(dropped: "sys.UnraisableHookArgs", /) -> None:
        error = dropped.exc_value
        if not (isinstance(error, KeyboardInterrupt) and again(error)):
            before(dropped)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def raise_soon(_: BaseException) -> bool:
    """Raise another interrupt in the main thread once the callback there has ended."""
    _thread.start_new_thread(_raise_in_main_thread, ())  # takes no lock of `threading`
    return True


def _raise_in_main_thread() -> None:
    """Raise KeyboardInterrupt in the main thread without a signal, whose handler counts calls."""
    import ctypes

    sleep(AGAIN)
    main = ctypes.c_ulong(main_thread().ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(KeyboardInterrupt))


@contextmanager
def on_interrupt(do: Callable[[], None]) -> Iterator[None]:
    """Call `do` at Ctrl-C, unless the program around the block has its own handler."""
    before = signal.getsignal(signal.SIGINT)
    ours = before is signal.default_int_handler and current_thread() is main_thread()
    if ours:
        signal.signal(signal.SIGINT, lambda *_: do())
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)
