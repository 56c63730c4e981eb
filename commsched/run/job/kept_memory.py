"""Ask the C library to keep the memory that a process frees, so that packets find it in place."""

import ctypes
import os

NO_MAPS, TRIM, HEAPS = -4, -1, -8  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_ARENA_MAX of mallopt(3)
NEVER = 2**31 - 1  # B at the end of the heap that are too few to be given back
# What a user may have set instead: the names of mallopt(3), and of glibc's tunables.
OWN = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory(*, one_heap: bool = False) -> bool:
    """Keep freed memory for what is allocated next; return whether this system can.

    Long arrays otherwise go back to the system at once, and the pages of the next ones are made
    and cleared as they are touched, which can take longer than to fill them. The process then
    holds as much memory as it ever needed. A user's own settings of glibc stay. `one_heap`, for a
    process that has no other threads yet: each thread uses memory that another has freed.
    """
    if any(name in os.environ for name in OWN):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc; other libraries have none
    if mallopt is None:
        return False
    if one_heap:
        mallopt(HEAPS, 1)
    return bool(mallopt(NO_MAPS, 0) and mallopt(TRIM, NEVER))
