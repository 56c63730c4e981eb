"""Settings of a rank's process: glibc keeps freed memory, and sleeps end when they are due."""

# Of malloc.h: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX; of linux/prctl.h: PR_SET_TIMERSLACK.
TRIM, MAPPED, ARENAS, SLACK = -1, -3, -8, 29


def prepare_process() -> None:
    """Set up memory and timers of this process; threads that it starts later inherit both.

    Let glibc hand no memory back before 2 GB are free, and all threads share one heap: by default
    every array of several MB is fresh memory, which has to be mapped page by page. Let Linux wake
    a sleeping thread when its time is over: by default up to 50 us later. On other systems, and
    with other C libraries, nothing changes.
    """
    import ctypes  # only ranks need it: commands start without

    end_sleeps_in_time()
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another system
        return
    mallopt(MAPPED, 32 * 2**20)  # the largest allowed value
    mallopt(TRIM, 2**31 - 1)
    mallopt(ARENAS, 1)  # one heap: every thread can reuse memory that another has freed


def end_sleeps_in_time() -> None:
    """Let Linux wake this thread, and those it starts, when a sleep is over."""
    import ctypes

    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(SLACK, ctypes.c_ulong(1), 0, 0, 0)  # ns
