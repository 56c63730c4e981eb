"""The device that holds a rank's arrays and orders the work on them: NumPy, or one GPU."""

import os
from collections.abc import Callable
from time import perf_counter as now  # as in `clock`, which needs MPI
from typing import Any, Protocol

import numpy as np

from commsched.arrays import Array
from commsched.errors import CommschedError
from commsched.net.measured import PROCESSOR

DEVICES = ("cpu", "cuda")


class Event(Protocol):
    """A point in a stream, reached once all earlier work of the stream is done."""

    def done(self) -> bool:
        """Tell whether the event is reached."""

    def wait(self) -> None:
        """Block only this thread until the event is reached."""

    def when(self) -> float:
        """Return the time of the event, which must have been reached, in s on this rank's clock."""


class ComputeDevice(Protocol):
    """A device whose array work is ordered by streams: "compute" for layers, "codec" for exchanges.

    "caller" is the stream that the caller's thread used before. Copies to the host and copies back
    have a stream each; they begin once the earlier work of the calling thread's stream is done.
    """

    name: str
    module: Any  # NumPy, or a module that computes like it

    @property
    def card(self) -> str:
        """The number of this GPU on its host; "" for NumPy."""

    def lacks(self) -> str:
        """Return what is missing for sums by NCCL; "" if nothing is."""

    def use(self, stream: str) -> None:
        """Queue this thread's array work on the named stream from now on."""

    def mark(self) -> Event:
        """Return the end of all work queued so far on the stream that this thread uses now."""

    def host(self, nbytes: int) -> Array:
        """Return host memory for copies: (nbytes,) uint8 of NumPy."""

    def copy_out(self, source: Array, to: Array) -> Event:
        """Begin to copy (n,) uint8 of the device to memory from `host`, (n,) uint8."""

    def about(self) -> tuple[str, float]:
        """Return the device's name and the bytes of its memory."""

    def copy_in(self, source: Array, to: Array) -> Event:
        """Begin to copy memory from `host`, (n,) uint8, to (n,) uint8 of the device."""


class Instant:
    """An event that has been reached already."""

    def __init__(self) -> None:
        self._moment = now()

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        """Do nothing: the event has been reached."""

    def when(self) -> float:
        return self._moment


class Host:
    """NumPy as a device: every thread does its work itself, at once."""

    name = "cpu"
    card = ""
    module: Any = np

    def lacks(self) -> str:
        return "no GPU"

    def use(self, stream: str) -> None:
        """Do nothing: the host has no streams."""

    def mark(self) -> Event:
        return Instant()

    def about(self) -> tuple[str, float]:
        return PROCESSOR, float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))

    def host(self, nbytes: int) -> Array:
        return np.empty(nbytes, np.uint8)

    def copy_out(self, source: Array, to: Array) -> Event:
        to[:] = source
        return Instant()

    def copy_in(self, source: Array, to: Array) -> Event:
        to[:] = source
        return Instant()


HOST = Host()


def check_device(name: str) -> None:
    """Reject a name that is not a device."""
    if name not in DEVICES:
        raise CommschedError(f"--device must be one of {', '.join(DEVICES)}, got {name!r}")


def moved(value: Any, move: Callable[[Array], Array]) -> Any:
    """Return arrays in tuples and dictionaries, each moved by `move`; numbers stay unchanged."""
    if isinstance(value, dict):
        return {key: moved(part, move) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(moved(part, move) for part in value)
    return move(value) if hasattr(value, "dtype") and bool(value.ndim) else value
