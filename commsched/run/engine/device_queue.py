"""Compute queued on a device: callers wait for operations; spans are recorded at their ends."""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from commsched.program.model import After
from commsched.run.engine.recorder import Recorder
from commsched.run.wire.device import ComputeDevice, Event


class Open(NamedTuple):
    """An operation that the device may not have ended."""

    step: int
    name: str
    start: Event
    end: Event


class DeviceQueue:
    """The compute stream of a rank, which queues work ahead of its device (on a host: never ahead).

    One thread adds operations in order; other threads wait for them.
    """

    def __init__(self, device: ComputeDevice, recorder: Recorder) -> None:
        self.device = device
        self._recorder = recorder
        self._open: deque[Open] = deque()
        self._ends: dict[tuple[int, str], Event] = {}

    def add(self, step: int, name: str, start: Event) -> Event:
        """Queue an operation that began at `start` on this thread's stream; return its end."""
        end = self.device.mark()
        if not self._open and end.done():
            self._recorder.add("compute", name, step, start.when(), end.when())
            return end
        self.settle(wait=False)
        self._ends[step, name] = end
        self._open.append(Open(step, name, start, end))
        return end

    def wait(self, step: int, after: Iterable[After]) -> None:
        """Wait until the device has computed all inputs of an operation of `step`."""
        for name, back in after:
            end = self._ends.get((step - back, name))
            if end is not None:
                end.wait()

    def over(self, step: int, after: Iterable[After]) -> bool:
        """Tell whether the device has computed all inputs of an operation of `step`."""
        ends = [self._ends.get((step - back, name)) for name, back in after]
        return all(end is None or end.done() for end in ends)

    def settle(self, *, wait: bool) -> None:
        """Record operations that are over, in order; with `wait` wait for all of them."""
        while self._open:
            step, name, start, end = self._open[0]
            if wait:
                end.wait()
            elif not end.done():
                return
            self._open.popleft()
            self._ends.pop((step, name), None)
            self._recorder.add("compute", name, step, start.when(), end.when())
