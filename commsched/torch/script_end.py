"""The end, normal or by an exception, of a training script that does not close its exchange."""

import atexit
import sys
from collections.abc import Callable
from types import TracebackType

from commsched.run.exchanger import Exchanger


class ScriptEnd:
    """A handler that calls `close` when the script ends; an uncaught exception ends the whole job.

    Other ranks would wait for the failed rank.
    """

    def __init__(self, exchanger: Exchanger, close: Callable[[], None]) -> None:
        self._exchanger, self._close, self._watches = exchanger, close, True
        self._old_hook, sys.excepthook = sys.excepthook, self._uncaught
        atexit.register(close)

    def forget(self) -> bool:
        """Remove the handler; return False if it was removed already."""
        was, self._watches = self._watches, False
        if was:
            atexit.unregister(self._close)
            if sys.excepthook == self._uncaught:
                sys.excepthook = self._old_hook
        return was

    def _uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if self.forget():
            self._exchanger.__exit__(kind, error, trace)
        else:
            self._old_hook(kind, error, trace)
