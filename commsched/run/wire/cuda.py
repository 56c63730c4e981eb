"""One NVIDIA GPU through CuPy: streams, events on this rank's clock, copies by pinned memory."""

import threading
from time import perf_counter as now
from typing import Any

import cupy
import numpy as np

from commsched.arrays import Array
from commsched.errors import CommschedError
from commsched.run.wire.device import Event

STREAMS = ("compute", "codec", "out", "in")
LOOKS = 5  # tries to read the host's clock at an event; the fastest counts
FRESH = 10.0  # s of use of a reference event: differences are float32 ms, so 10 s are exact to 1 us


class Moment:
    """A CUDA event, and an earlier event whose time on this rank's clock is known."""

    def __init__(self, event: Any, base: Any, start: float) -> None:
        self._event, self._base, self._start = event, base, start

    def done(self) -> bool:
        return bool(self._event.done)

    def wait(self) -> None:
        self._event.synchronize()

    def when(self) -> float:
        return self._start + float(cupy.cuda.get_elapsed_time(self._base, self._event)) * 1e-3


def open_gpu(number: int | None) -> "Cuda":
    """Open a GPU by number; raise an error if the driver does not let this process use it."""
    try:
        return Cuda(number)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise CommschedError(f"--device cuda: GPU {number or 0} cannot be used: {error}") from None


class Cuda:
    """A GPU of this host; ranks may share it.

    All threads of a rank queue the kernels of encode, add and decode on one stream, because CuPy's
    memory pool hands freed memory to the next allocation on the same stream.
    """

    name = "cuda"
    module: Any = cupy

    def __init__(self, number: int | None) -> None:
        self._number = int(cupy.cuda.Device().id) if number is None else number
        self._lock = threading.Lock()
        self._attach()
        # Streams that wait for the default stream: work queued there by mistake is slow, not wrong.
        self._streams = {name: cupy.cuda.Stream() for name in STREAMS}
        self._streams["caller"] = cupy.cuda.get_current_stream()
        self._ticks = cupy.cuda.Stream(
            non_blocking=True
        )  # an empty stream, so that its events are reached at once
        self._base, self._start = self._look()

    def _attach(self) -> None:
        """Let this thread work with the GPU."""
        cupy.cuda.Device(self._number).use()

    def use(self, stream: str) -> None:
        self._attach()
        self._streams[stream].use()

    def mark(self) -> Event:
        event = cupy.cuda.Event(block=True)  # a waiting thread sleeps
        event.record()
        base, start = self._known()
        return Moment(event, base, start)

    def _known(self) -> tuple[Any, float]:
        """Return an earlier event and its time."""
        with self._lock:
            if now() - self._start > FRESH:
                self._base, self._start = self._look()
            return self._base, self._start

    def _look(self) -> tuple[Any, float]:
        """Find the time of an event on this rank's clock, by the method of `clock.align`."""
        best, found, start = float("inf"), None, 0.0
        for _ in range(LOOKS):
            event = cupy.cuda.Event()
            before = now()
            event.record(self._ticks)
            event.synchronize()
            after = now()
            if after - before < best:
                best, found, start = after - before, event, (before + after) / 2
        return found, start

    def about(self) -> tuple[str, float]:
        found = cupy.cuda.runtime.getDeviceProperties(self._number)
        return found["name"].decode(), float(found["totalGlobalMem"])

    @property
    def card(self) -> str:
        return str(cupy.cuda.Device(self._number).pci_bus_id)

    def lacks(self) -> str:
        try:
            from cupy.cuda import nccl
        except ImportError as error:
            return f"CuPy has no NCCL ({error})"
        return "" if nccl.available else "CuPy finds no NCCL (pip install nvidia-nccl-cu13)"

    def host(self, nbytes: int) -> Array:
        return np.frombuffer(cupy.cuda.alloc_pinned_memory(max(nbytes, 1)), np.uint8, nbytes)

    def copy_out(self, source: Array, to: Array) -> Event:
        stream = self.after(self._streams["out"])
        source.data.copy_to_host_async(to.ctypes.data, source.nbytes, stream)
        return self.end(stream)

    def copy_in(self, source: Array, to: Array) -> Event:
        stream = self.after(self._streams["in"])
        to.data.copy_from_host_async(source.ctypes.data, source.nbytes, stream)
        return self.end(stream)

    def after(self, stream: Any) -> Any:
        """Return a stream that continues after the earlier work of this thread's stream."""
        given = cupy.cuda.Event(disable_timing=True)
        given.record()
        stream.wait_event(given)
        return stream

    def end(self, stream: Any) -> Event:
        """Return an untimed event: the end of all work queued on a stream so far."""
        event = cupy.cuda.Event(disable_timing=True)
        event.record(stream)
        return Moment(event, self._base, self._start)
