"""Repetition of measurements that other guests of the host disturbed."""

import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import NamedTuple, TypeVar

import numpy as np

from commsched.machine.trust import STEADY

T = TypeVar("T")
CALM = 0.02  # largest share of stolen processor time in a calm measurement
TRIES = 3
PATIENCE = 60.0  # s, default limit of the sum of all repetitions and waits
PAUSE = 1.0  # s between two looks at the memory

STAT = Path("/proc/stat")
_STEAL = 7  # index of the stolen time in the line "cpu"
_COPIED, _COPIES = 32 * 2**20, 32  # B of a copy, beyond a core's caches; copies


class Disturbance(NamedTuple):
    """The resources that other guests took from a measurement."""

    stolen: float  # share of the processor time
    memory: float | None = None  # s of a copy over the usual s

    @property
    def size(self) -> float:
        """Return the size of the disturbance; at most 1 is calm."""
        return max(self.stolen / CALM, abs(math.log(self.memory or 1.0)) / math.log1p(STEADY))


def copying_seconds() -> float:
    """Return the median s of a copy while all usable cores copy."""
    cores = os.sched_getaffinity(0)
    with ThreadPoolExecutor(len(cores)) as pool:
        return float(np.median(list(pool.map(_copies, cores, [Barrier(len(cores))] * len(cores)))))


def _copies(core: int, together: Barrier) -> list[float]:
    os.sched_setaffinity(0, {core})  # of this thread
    source = np.ones(_COPIED // 4, np.float32)
    target = np.ones_like(source)
    together.wait(PATIENCE)
    times = [time.perf_counter()]
    for _ in range(_COPIES):
        np.copyto(target, source)
        times.append(time.perf_counter())
    return np.diff(times).tolist()


def _ticks(stat: Path) -> tuple[int, int]:
    """Return the stolen and all ticks since the machine started; (0, 0) if unknown."""
    if not stat.exists():
        return 0, 0
    kinds = [int(word) for word in stat.read_text("ascii").split("\n", 1)[0].split()[1:9]]
    return kinds[_STEAL], sum(kinds)


class Calm:
    """A callable that repeats disturbed measurements and returns the calmest."""

    def __init__(
        self,
        stat: Path = STAT,
        patience: float = PATIENCE,
        copying: Callable[[], float] = copying_seconds,
    ) -> None:
        self.copying = copying
        self._stat = stat
        self._left = patience

    def __call__(
        self, measure: Callable[[], T], usual: float | None = None
    ) -> tuple[T, Disturbance]:
        """Return the result of the calmest of up to TRIES measurements, and its disturbance.

        usual [s]: of a copy of memory before and after a calm measurement; None: do not check.
        """
        found: list[tuple[T, Disturbance]] = []
        while True:
            copies = [self._steady(usual)] if usual else []
            begun, (stolen, whole) = time.monotonic(), _ticks(self._stat)
            value = measure()
            stolen_then, whole_then = _ticks(self._stat)
            if found:
                self._left -= time.monotonic() - begun
            share = (stolen_then - stolen) / max(whole_then - whole, 1)
            disturbance = Disturbance(share)
            if usual:
                copies.append(self.copying())
                both = [Disturbance(share, copy / usual) for copy in copies]
                disturbance = max(both, key=lambda one: one.size)
            found.append((value, disturbance))
            if disturbance.size <= 1.0 or len(found) == TRIES or self._left <= 0:
                return min(found, key=lambda one: one[1].size)

    def _steady(self, usual: float) -> float:
        """Wait within the patience until a copy takes the usual time; return its last time."""
        while True:
            begun, copy = time.monotonic(), self.copying()
            if self._left <= 0 or Disturbance(0.0, copy / usual).size <= 1.0:
                return copy
            time.sleep(PAUSE)
            self._left -= time.monotonic() - begun
