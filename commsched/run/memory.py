"""Memory that a rank frees stays with it: a fresh page costs more than what is written to it."""

import ctypes

TRIM, TOP, MAPPED = -1, -2, -3  # M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD of glibc's malloc.h


def keep_freed() -> None:
    """Let glibc hand no memory back before 2 GB are free; elsewhere nothing changes.

    By default every array of some MB is new to the system: 3 us per 4 kB on a virtual machine.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return
    mallopt(MAPPED, 32 * 2**20)  # the most that it takes
    mallopt(TRIM, 2**31 - 1)
    mallopt(TOP, 16 * 2**20)
