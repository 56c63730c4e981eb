"""Make glibc keep freed memory: the first touch of a page costs more than writing it."""

TRIM, MAPPED, ARENAS = -1, -3, -8  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX of malloc.h


def keep_freed() -> None:
    """Let glibc hand no memory back before 2 GB are free, and all threads share one heap.

    By default every array of several MB is fresh memory, at 3 us per 4 kB on a virtual machine.
    With other C libraries nothing changes.
    """
    import ctypes  # only ranks need it: commands start without

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return
    mallopt(MAPPED, 32 * 2**20)  # the largest allowed value
    mallopt(TRIM, 2**31 - 1)
    mallopt(ARENAS, 1)  # one heap: every thread can reuse memory that another has freed
