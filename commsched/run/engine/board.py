"""The notice board of one rank: finished operations, and the waits of each stream."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from commsched.program.model import After, Op
from commsched.run.job.clock import now

Key = tuple[int, str]  # step, name of an operation
POLL = 1e-4  # s between polls of events that are not posted on the board
HOLD = 2e-4  # s for which a busy thread may delay waking others
KEEP = 4  # steps whose finished operations are remembered


class Stopped(Exception):
    """An early end of the run, because something failed elsewhere on this rank."""


Awaited = Callable[[], set[Key] | None]  # what a stream waits for now; None: nothing


@dataclass(slots=True)
class Sleeper:
    """A waiting stream: any one of the operations `keys` wakes it, or only `every` one of them."""

    keys: set[Key]  # with `every`: the operations that are not done yet
    every: bool
    condition: threading.Condition
    awaited: Awaited | None  # new `keys` when operations are queued; None: these change nothing


@dataclass(slots=True)
class WaitStatus:
    """The current activity of a stream."""

    step: int
    name: str
    what: str  # "runs", "waits for b0/decode"
    since: float
    waits: bool  # a deadline applies


class Board:
    """Finished operations by (step, name), guarded by one lock.

    A waiting stream names its operations, and only these wake the stream: if ranks share cores,
    waking all streams at every operation costs more processor time than the operations.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.failure: BaseException | None = None
        self.closed = False
        self.changed = np.zeros(1, np.uint8)  # 1: something was posted since the flag was cleared
        self.occupies_cores = True  # whether this rank's computation occupies a core
        self.status: dict[str, WaitStatus] = {}
        self.moved = now()  # when an operation was last done
        self._done: dict[int, dict[str, float]] = {}  # step -> name -> time
        self._sleepers: list[Sleeper] = []
        self._due: list[threading.Condition] = []  # of streams that `deliver` must wake
        self._since = 0.0  # when the first of `_due` was due; 0: none

    @property
    def computes(self) -> bool:
        """Tell whether this rank's computation occupies a core now."""
        own = self.status.get("compute")
        return self.occupies_cores and not (own and own.waits)

    @property
    def owes(self) -> bool:
        """Tell whether `deliver` has streams to wake."""
        return bool(self._due)

    def mark(self, step: int, name: str, when: float, *, wakes: bool = True) -> None:
        """Post that an operation is done; wake its waiters now, or by `deliver` if not `wakes`."""
        with self.lock:
            self.changed[0] = 1
            self._done.setdefault(step, {})[name] = self.moved = when
            for sleeper in self._sleepers:
                if (step, name) not in sleeper.keys:
                    continue
                if sleeper.every:
                    sleeper.keys.remove((step, name))
                    if sleeper.keys:
                        continue
                if wakes:
                    sleeper.condition.notify()
                elif sleeper.condition not in self._due:
                    self._due.append(sleeper.condition)
                    self._since = self._since or when

    def deliver(self, *, busy: bool) -> None:
        """Wake the waiters of operations that were marked without `wakes`.

        A `busy` thread may delay that for HOLD: a woken stream takes the interpreter from it.
        """
        if self._due and not (busy and now() - self._since < HOLD):
            with self.lock:
                for condition in self._due:
                    condition.notify()
                self._due.clear()
                self._since = 0.0

    def wake(self) -> None:
        """Wake all streams, at the end or after a failure."""
        with self.lock:
            self.changed[0] = 1
            for sleeper in self._sleepers:
                sleeper.condition.notify()

    def queued(self) -> None:
        """Wake the streams that can begin a queued operation; update what the others wait for."""
        with self.lock:
            self.changed[0] = 1
            for sleeper in self._sleepers:
                if sleeper.awaited is None:
                    continue
                keys = sleeper.awaited()
                if keys is None:
                    sleeper.condition.notify()
                else:
                    sleeper.keys = keys

    def sleep(
        self,
        keys: set[Key],
        timeout: float | None = None,
        *,
        every: bool = False,
        awaited: Awaited | None = None,
    ) -> None:
        """Release the lock until one of the operations is done, or all streams are woken.

        every: wait until all are done; done operations leave the set. awaited: see `Sleeper`.
        """
        sleeper = Sleeper(keys, every, threading.Condition(self.lock), awaited)
        self._sleepers.append(sleeper)
        sleeper.condition.wait(timeout)
        self._sleepers.remove(sleeper)

    def forget_before(self, step: int) -> None:
        """Drop finished operations of old steps, on which nothing can depend any more."""
        with self.lock:
            for old in [each for each in self._done if each < step - KEEP]:
                del self._done[old]

    def missing(self, step: int, after: Iterable[After]) -> list[Key]:
        """Return the dependencies that are not done; those before the first step count as done."""
        keys = [(step - back, name) for name, back in after]
        return [key for key in keys if key[0] >= 0 and not self.is_done(*key)]

    def ready(self, step: int, after: Iterable[After]) -> bool:
        """Tell whether none of the dependencies is `missing`."""
        for name, back in after:
            if step >= back and name not in self._done.get(step - back, ()):
                return False
        return True

    def is_done(self, step: int, name: str) -> bool:
        """Tell whether an operation is done."""
        return name in self._done.get(step, ())

    def when(self, step: int, after: Iterable[After]) -> float:
        """Return the time at which the last dependency was done; -inf without any."""
        times = [self._done[step - b][n] for n, b in after if step - b >= 0]
        return max(times, default=float("-inf"))

    def wait_for_head(self, stream: str, queue: Sequence[tuple[int, Op]]) -> bool:
        """Block until the first operation of a queue can begin; False: the board was closed.

        Other threads add to the queue, and then call `queued`.
        """

        def awaited() -> set[Key] | None:
            if not queue:
                return None if self.closed else set()
            step, op = queue[0]
            missing = self.missing(step, op.after)
            if missing:
                what = f"waits for {missing[0][1]}"
                self.status[stream] = WaitStatus(step, op.name, what, now(), False)
            return set(missing) or None

        with self.lock:
            self.idle(stream)
            self.check()
            while (keys := awaited()) is not None:
                self.sleep(keys, every=True, awaited=awaited)
                self.check()
            if not queue:
                return False
            step, op = queue[0]
            self.status[stream] = WaitStatus(step, op.name, "runs", now(), False)
            return True

    def wait_for_any(self, stream: str, step: int, ops: Sequence[Op]) -> None:
        """Block until the dependencies of at least one of the operations are done."""
        with self.lock:
            while all(missing := [self.missing(step, op.after) for op in ops]):
                self.check()
                what = f"waits for {' or '.join(keys[0][1] for keys in missing)}"
                status = self.status.get(stream)
                if status is None or (status.name, status.what) != (ops[0].name, what):
                    self.show(stream, WaitStatus(step, ops[0].name, what, now(), True))
                self.sleep({key for keys in missing for key in keys})
            self.check()
            self.status[stream] = WaitStatus(step, ops[0].name, "runs", now(), False)

    def wait_for_all(self, stream: str, step: int, ops: Sequence[Op]) -> None:
        """Block until the dependencies of all operations are done; then the last one is running."""
        with self.lock:
            while missing := [key for op in ops for key in self.missing(step, op.after)]:
                self.check()
                what = f"waits for {missing[0][1]}"
                self.show(stream, WaitStatus(step, ops[0].name, what, now(), True))
                self.sleep(set(missing), every=True)
            self.check()
            self.status[stream] = WaitStatus(step, ops[-1].name, "runs", now(), False)

    def poll(self, done: Callable[[], bool], stream: str, status: WaitStatus) -> None:
        """Poll an event that is not posted on the board, and show `status` meanwhile."""
        self.show(stream, status)
        while not done():
            self.check()
            time.sleep(POLL)
        self.idle(stream)

    def show(self, stream: str, status: WaitStatus) -> None:
        """Record what the stream waits for."""
        self.status[stream] = status
        self.changed[0] = 1

    def idle(self, stream: str) -> None:
        """Record that the stream has nothing to do."""
        self.status.pop(stream, None)

    def fail(self, error: BaseException) -> None:
        """Post a failure, which stops every waiting stream; only the first failure counts."""
        with self.lock:
            if self.failure is None:
                self.failure = error
            self.wake()

    def check(self) -> None:
        """Raise `Stopped` if something failed on this rank."""
        if self.failure is not None:
            raise Stopped

    def until_done(self, keys: Iterable[Key]) -> None:
        """Block until all these operations are done."""
        wanted = list(keys)
        with self.lock:
            while missing := {key for key in wanted if not self.is_done(*key)}:
                self.check()
                self.sleep(missing, every=True)
            self.check()
