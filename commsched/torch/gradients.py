"""Statistics of the gradients in captured steps: zeros, decay, and samples in a file."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from commsched.arrays import Array
from commsched.exchange.error import RANKS, is_small
from commsched.exchange.recorded_gradients import Recording, sample
from commsched.files import check_writable
from commsched.net.decay import fit_decay
from commsched.net.rows import Nonzeros
from commsched.net.sparsity import Sparsity

STEPS = 2 * RANKS.size  # each recorded gradient needs a step


class Gradients:
    """Statistics of the gradients of STEPS steps; `record`: file on rank 0, None on others."""

    def __init__(self, record: Path | None) -> None:
        self._recording: Recording | None = None
        self._decays: defaultdict[str, list[float]] = defaultdict(list)
        self._nonzeros: defaultdict[str, Nonzeros] = defaultdict(Nonzeros)
        if record is not None:
            check_writable(record)
            self._recording = Recording(record)

    def take(self, parameters: Mapping[str, Any]) -> None:
        """Take the gradients of a step."""
        for name, parameter in parameters.items():
            if parameter.grad is None or (self._recording is None and is_small(parameter.shape)):
                continue
            gradient = parameter.grad.detach()
            listed = gradient.layout is not torch.strided
            if self._recording is not None:
                dense = gradient.to_dense() if listed else gradient
                self._recording.take(name, dense.float().numpy())
            if not is_small(parameter.shape):
                values = gradient.coalesce().values() if listed else gradient
                self._decays[name].append(fit_decay(sample(values.float().numpy())))
                if not listed:
                    self._nonzeros[name].add((gradient != 0).numpy())

    def decays(self, names: Mapping[str, Any]) -> Array:
        """Return the median decay of each parameter's gradients, NaN for unknown ones: (names,)."""
        return np.array([float(np.median(self._decays.get(n, [np.nan]))) for n in names])

    def laws(self) -> dict[str, Sparsity]:
        """Return the sparsity law of each examined parameter's gradients."""
        return {name: seen.law() for name, seen in self._nonzeros.items()}

    def write(self) -> None:
        """Write the file, on the rank that has a `record`."""
        if self._recording is not None:
            self._recording.write()
