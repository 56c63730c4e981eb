"""The notice board of one rank: which operations are done, and who waits for what since when."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from commsched.program import After, Op
from commsched.run.clock import now

KEEP = 4  # steps whose finished operations are remembered


class Stopped(Exception):
    """The run ends early because something failed elsewhere on this rank."""


@dataclass(slots=True)
class Status:
    """What a stream does now."""

    step: int
    name: str
    what: str  # "runs", "waits for b0/decode"
    since: float
    waits: bool  # a deadline applies


class Board:
    """Finished operations by (step, name), guarded by one condition that all streams share."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.failure: BaseException | None = None
        self.closed = False
        self.status: dict[str, Status] = {}
        self.moved = now()  # when an operation was last done
        self._done: dict[tuple[int, str], float] = {}

    def mark(self, step: int, name: str, when: float) -> None:
        """Post that an operation is done."""
        with self.changed:
            self._done[step, name] = when
            self.moved = now()
            self.changed.notify_all()

    def forget_before(self, step: int) -> None:
        """Drop operations of steps that nothing can depend on any more."""
        with self.changed:
            old = [key for key in self._done if key[0] < step - KEEP]
            for key in old:
                del self._done[key]

    def missing(self, step: int, after: Iterable[After]) -> str | None:
        """The first dependency that is not done; what lies before the first step is."""
        for name, back in after:
            if step - back >= 0 and (step - back, name) not in self._done:
                return name
        return None

    def is_done(self, step: int, name: str) -> bool:
        """Whether an operation is done."""
        return (step, name) in self._done

    def when(self, step: int, after: Iterable[After]) -> float:
        """When the last dependency was done; -inf without any."""
        times = [self._done[step - b, n] for n, b in after if step - b >= 0]
        return max(times, default=float("-inf"))

    def wait(self, stream: str, step: int, op: Op, deadline: bool) -> None:
        """Block until the dependencies of an operation are done."""
        with self.changed:
            while (name := self.missing(step, op.after)) is not None:
                self.check()
                what = f"waits for {name}"
                status = self.status.get(stream)
                if status is None or (status.name, status.what) != (op.name, what):
                    self.status[stream] = Status(step, op.name, what, now(), deadline)
                self.changed.wait()
            self.check()
            self.status[stream] = Status(step, op.name, "runs", now(), False)

    def idle(self, stream: str) -> None:
        """The stream has nothing to do."""
        self.status.pop(stream, None)

    def fail(self, error: BaseException) -> None:
        """Post a failure; every waiting stream stops. The first one counts."""
        with self.changed:
            if self.failure is None:
                self.failure = error
            self.changed.notify_all()

    def check(self) -> None:
        """Raise `Stopped` where something failed on this rank."""
        if self.failure is not None:
            raise Stopped

    def until(self, condition: Callable[[], bool]) -> None:
        """Block until a condition over what the board guards holds."""
        with self.changed:
            while not condition():
                self.check()
                self.changed.wait()
            self.check()
