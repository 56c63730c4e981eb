"""The time limit of a command reaches the command, wherever it finds it."""

import gc
import time

import pytest

from commsched.cli.signals import time_limit


def use(seconds: float) -> None:
    """Use some seconds of processor time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def collect_for_long() -> None:
    with time_limit(0.05):
        gc.collect()
        use(5.0)


def test_a_limit_that_ends_in_the_collectors_callback_is_not_lost():
    def busy(phase: str, _: dict[str, int]) -> None:
        use(0.2 if phase == "start" else 0.0)

    gc.callbacks.append(busy)
    try:
        with pytest.raises(KeyboardInterrupt):
            collect_for_long()
    finally:
        gc.callbacks.remove(busy)
