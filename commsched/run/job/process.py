"""Settings of a rank's process: glibc keeps freed memory, and sleeps end when they are due."""

import os

SLACK = 29  # PR_SET_TIMERSLACK of linux/prctl.h
NO_MAPS, TRIM, HEAPS = -4, -1, -8  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_ARENA_MAX of mallopt(3)
NEVER = 2**31 - 1  # B at the end of the heap that are too few to be given back
# What a user may have set instead: the names of mallopt(3), and of glibc's tunables.
OWN = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def prepare_process() -> None:
    """Set up memory and timers of this process; threads that it starts later inherit both.

    Freed memory stays, see `keep_freed_memory`. Linux wakes a sleeping thread when its time is
    over: by default up to 50 us later. On other systems nothing changes.
    """
    end_sleeps_in_time()
    keep_freed_memory(one_heap=True)


def end_sleeps_in_time() -> None:
    """Let Linux wake this thread, and those it starts, when a sleep is over."""
    import ctypes  # commands start without it

    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(SLACK, ctypes.c_ulong(1), 0, 0, 0)  # ns


def keep_freed_memory(*, one_heap: bool = False) -> bool:
    """Keep freed memory for what is allocated next; return whether this system can.

    Long arrays otherwise go back to the system at once, and the pages of the next ones are made
    and cleared as they are touched, which can take longer than to fill them. The process then
    holds as much memory as it ever needed. A user's own settings of glibc stay. `one_heap`, for a
    process that has no other threads yet: each thread uses memory that another has freed.
    """
    import ctypes

    if any(name in os.environ for name in OWN):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc; other libraries have none
    if mallopt is None:
        return False
    if one_heap:
        mallopt(HEAPS, 1)
    return bool(mallopt(NO_MAPS, 0) and mallopt(TRIM, NEVER))
