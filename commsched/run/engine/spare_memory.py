"""Memory that buckets borrow only while they are under way, to limit the total."""

import threading
from typing import Any

import numpy as np

from commsched.arrays import Array


class SpareMemory:
    """Returned arrays that wait for the next borrower, in any thread."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._free: list[Array] = []
        self._lock = threading.Lock()

    def borrow(self, numel: int) -> Array:
        """Return (at least numel,) float32 of any content; drop a spare array that is too small."""
        with self._lock:
            self._free.sort(key=len)
            for place, array in enumerate(self._free):
                if len(array) >= numel:
                    return self._free.pop(place)
            if self._free:
                self._free.pop()
        return self._module.empty(numel, np.float32)

    def give_back(self, array: Array) -> None:
        """Take back an array that nobody reads any more."""
        with self._lock:
            self._free.append(array)
