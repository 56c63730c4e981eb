"""The gradients of a training's last steps, kept for a planner's error budget."""

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from commsched.arrays import Array
from commsched.exchange import recorded_gradients as recorded


class Recording:
    """Samples of the last gradients that one rank handed over, for `plan --gradients`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: dict[str, deque[Array]] = {}  # tensor name -> samples, the newest last

    def take(self, name: str, gradient: Array) -> None:
        """Keep a sample of a gradient, of any shape."""
        kept = self._kept.setdefault(name, deque(maxlen=recorded.COUNT))
        kept.append(recorded.sample(gradient))

    def write(self) -> None:
        """Write the file that `recorded.read` reads."""
        kept: Mapping[str, Sequence[Array]] = self._kept
        recorded.write(self._path, {name: np.stack(values) for name, values in kept.items()})
