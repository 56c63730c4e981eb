"""Short time slices from Linux, so that a thread wakes in time and runs soon beside compute."""

import ctypes
import platform
import sys

from commsched.run.job.process import end_sleeps_in_time

SLICE = 100_000  # ns, the shortest that Linux grants
CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}  # sched_setattr, sched_getattr


class Attributes(ctypes.Structure):
    """`struct sched_attr` of sched_setattr(2) in its first version of 48 B."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),  # ns
        ("deadline", ctypes.c_uint64),  # ns
        ("period", ctypes.c_uint64),  # ns
    )


def ask() -> bool:
    """Ask for short slices of the calling thread; return whether this system has them.

    A shorter slice has an earlier deadline: a waking thread takes the core at once from a computing
    thread, and its share of time stays the same. Linux 6.12 and later; needs no privilege.
    Source: Stoica and Abdel-Wahab, "Earliest Eligible Virtual Deadline First", 1995.
    """
    end_sleeps_in_time()
    found = _attributes()
    if found is None:
        return False
    found.runtime = SLICE
    return bool(_call(0, 0, ctypes.byref(found), 0) == 0 and granted() == SLICE)


def granted() -> int | None:
    """Return the slice of the calling thread in ns, 0: the usual one; None: unknown."""
    found = _attributes()
    return None if found is None else int(found.runtime)


def _attributes() -> Attributes | None:
    found = Attributes()
    wrong = _call(1, 0, ctypes.byref(found), ctypes.sizeof(found), 0)
    return None if wrong else found


def _call(number: int, *arguments: object) -> int:
    calls = CALLS.get(platform.machine())
    if sys.platform != "linux" or calls is None:
        return -1
    return int(ctypes.CDLL(None, use_errno=True).syscall(calls[number], *arguments))
