"""Repeat measurements from which other guests of the host took processor time."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
CALM = 0.02  # share of the processor time that may be stolen while something is measured
TRIES = 3
PATIENCE = 60.0  # s, default limit of all repetitions together

STAT = Path("/proc/stat")
_STEAL = 7  # index of the stolen time in the line "cpu"


def _ticks(stat: Path) -> tuple[int, int]:
    """Return the stolen and all ticks since the machine started; (0, 0) if unknown."""
    if not stat.exists():
        return 0, 0
    kinds = [int(word) for word in stat.read_text("ascii").split("\n", 1)[0].split()[1:9]]
    return kinds[_STEAL], sum(kinds)


class Calm:
    """Repeats measurements during which processor time was stolen; returns the calmest one."""

    def __init__(self, stat: Path = STAT, patience: float = PATIENCE) -> None:
        self._stat = stat
        self._left = patience

    def __call__(self, measure: Callable[[], T]) -> tuple[T, float]:
        """Return the result of the calmest of up to TRIES measurements, and its stolen share."""
        found: list[tuple[T, float]] = []
        while True:
            begun, (stolen, whole) = time.monotonic(), _ticks(self._stat)
            value = measure()
            stolen_then, whole_then = _ticks(self._stat)
            if found:
                self._left -= time.monotonic() - begun
            found.append((value, (stolen_then - stolen) / max(whole_then - whole, 1)))
            if found[-1][1] <= CALM or len(found) == TRIES or self._left <= 0:
                return min(found, key=lambda one: one[1])
