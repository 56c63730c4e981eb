"""Settings of a rank's process: glibc keeps freed memory, and sleeps end on time."""

import os

SLACK = 29  # PR_SET_TIMERSLACK of linux/prctl.h
NO_MAPS, TRIM, HEAPS = -4, -1, -8  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_ARENA_MAX of mallopt(3)
NEVER = 2**31 - 1  # B at the end of the heap that glibc does not give back
# Settings that a user may have made instead: names of mallopt(3), and of glibc's tunables.
OWN = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def prepare_process() -> None:
    """Set up memory and timers of this process; threads that it starts later inherit both.

    Freed memory stays, see `keep_freed_memory`. Linux wakes sleeping threads on time instead of up
    to 50 us later. On other systems nothing changes.
    """
    end_sleeps_in_time()
    keep_freed_memory(one_heap=True)


def end_sleeps_in_time() -> None:
    """Let Linux wake this thread, and threads that it starts, exactly at the end of a sleep."""
    import ctypes  # commands start without it

    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(SLACK, ctypes.c_ulong(1), 0, 0, 0)  # ns


def keep_freed_memory(*, one_heap: bool = False) -> bool:
    """Keep freed memory for later allocations; return whether this system can do so.

    Otherwise long arrays go back to the system at once, and new arrays get new pages, which can
    take longer to clear than to fill. The process keeps its largest amount of memory. A user's own
    settings of glibc stay. `one_heap`, for a process without other threads yet: each thread uses
    memory that another thread has freed.
    """
    import ctypes

    if any(name in os.environ for name in OWN):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc only
    if mallopt is None:
        return False
    if one_heap:
        mallopt(HEAPS, 1)
    return bool(mallopt(NO_MAPS, 0) and mallopt(TRIM, NEVER))
