"""Memory that a rank frees stays with it: a fresh page costs more than what is written to it."""

TRIM, MAPPED, ARENAS = -1, -3, -8  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX of malloc.h


def keep_freed() -> None:
    """Let glibc hand no memory back before 2 GB are free, and all threads share one heap.

    By default every array of some MB is new to the system: 3 us per 4 kB on a virtual machine.
    With other C libraries nothing changes.
    """
    import ctypes  # only ranks need it: commands start without

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return
    mallopt(MAPPED, 32 * 2**20)  # the most that it takes
    mallopt(TRIM, 2**31 - 1)
    mallopt(ARENAS, 1)  # what one thread frees is there for the others
