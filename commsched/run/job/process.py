"""Settings of a rank's process: glibc keeps freed memory, and sleeps end when they are due."""

SLACK = 29  # PR_SET_TIMERSLACK of linux/prctl.h


def prepare_process() -> None:
    """Set up memory and timers of this process; threads that it starts later inherit both.

    Freed memory stays, see `keep_freed_memory`. Linux wakes a sleeping thread when its time is
    over: by default up to 50 us later. On other systems nothing changes.
    """
    from commsched.run.job.kept_memory import keep_freed_memory  # commands start without it

    end_sleeps_in_time()
    keep_freed_memory(one_heap=True)


def end_sleeps_in_time() -> None:
    """Let Linux wake this thread, and those it starts, when a sleep is over."""
    import ctypes

    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(SLACK, ctypes.c_ulong(1), 0, 0, 0)  # ns
