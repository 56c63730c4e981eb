"""Streams, events and copies: work is done at once, but for copies of their own streams.

A copy happens when it is asked for the third time whether it is over; until then its target holds
rubbish. CuPy's refusals: differences of events without time, or that were never recorded.
"""

import ctypes
import os
import threading
import tracemalloc
from collections import deque
from time import perf_counter

from cupy.cuda import nccl, nvrtc, runtime

__all__ = ["nccl", "nvrtc", "runtime"]
LOOKS = 3
RUBBISH = 0xAA
HERE = threading.local()
WORK = threading.RLock()


class Stream:
    """An order of work."""

    def __init__(self, null=False, non_blocking=False):
        self.ptr = id(self)
        self._ahead = deque()
        self._left = 0  # copies that were made

    def use(self):
        HERE.stream = self
        return self

    def __enter__(self):
        self._before = get_current_stream()
        return self.use()

    def __exit__(self, *_):
        self._before.use()

    def give(self, copy):
        with WORK:
            self._ahead.append(copy)

    def given(self):
        with WORK:
            return self._left + len(self._ahead)

    def make(self, number):
        """Make copies until `number` are made."""
        with WORK:
            while self._left < number:
                self._ahead.popleft()()
                self._left += 1

    def wait_event(self, event):
        event.synchronize()

    def synchronize(self):
        self.make(self.given())


NULL = Stream()


def get_current_stream():
    """The one of this thread."""
    return getattr(HERE, "stream", NULL)


class Event:
    """A moment of a stream."""

    def __init__(self, block=False, disable_timing=False):
        self.timed, self.moment = not disable_timing, None
        self._stream, self._number, self._looks = None, 0, 0

    def record(self, stream=None):
        self._stream = stream or get_current_stream()
        self._number = self._stream.given()
        self.moment = perf_counter()

    @property
    def done(self):
        self._looks += 1
        if self._looks >= LOOKS:
            self.synchronize()
        return self._looks >= LOOKS

    def synchronize(self):
        assert self._stream is not None, "an event that was never recorded"
        self._stream.make(self._number)
        self._looks = LOOKS


def get_elapsed_time(start, end):
    """Milliseconds between two events."""
    assert start.timed, "an event without time"
    assert end.timed, "an event without time"
    return (end.moment - start.moment) * 1e3


class Memory:
    """Where an array of the device lies."""

    def __init__(self, held):
        assert held.flags.c_contiguous
        self._held = held
        self.ptr = held.ctypes.data

    def copy_to_host_async(self, to, nbytes, stream):
        _late(self._held, to, self.ptr, nbytes, stream)

    def copy_from_host_async(self, source, nbytes, stream):
        _late(self._held, self.ptr, source, nbytes, stream)


def _late(held, to, source, nbytes, stream):
    ctypes.memset(to, RUBBISH, nbytes)

    def make():
        assert held is not None
        ctypes.memmove(to, source, nbytes)

    stream.give(make)


def alloc_pinned_memory(nbytes):
    """Memory of the host."""
    return bytearray(nbytes)


class Device:
    """The only one; where COMMSCHED_CARDS is set every process takes it for another."""

    compute_capability = "90"

    def __init__(self, number=0):
        assert number == 0
        self.id = number
        self.pci_bus_id = f"0000:{os.getpid() if nccl.available else 0:02x}:00.0"

    def use(self):
        """There is no other."""


class Pool:
    """What arrays take, as CuPy's pool says it."""

    def free_all_blocks(self):
        if not tracemalloc.is_tracing():
            tracemalloc.start(1)
        tracemalloc.reset_peak()

    def total_bytes(self):
        return tracemalloc.get_traced_memory()[1]
