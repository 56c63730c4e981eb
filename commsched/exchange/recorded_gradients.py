"""Gradients recorded by a training, and the errors of lossy methods on them.

A file in NumPy's npz format: tensor name -> (count, ...) floats, gradients in the order of
their steps. Each has all elements of the tensor, or the SAMPLE elements that `sample` takes.
Four consecutive gradients count as those of four ranks in one step.
"""

import math
import zipfile
from collections import defaultdict, deque
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import numpy as np

from commsched import files, npz
from commsched.arrays import Array
from commsched.errors import CommschedError
from commsched.exchange import error
from commsched.exchange.method import Method
from commsched.kernels.finite_check import finite
from commsched.nearest_name import nearest
from commsched.net.graph import Net, Tensor

COUNT = error.STEPS * error.RANKS.size  # used gradients of a tensor: the last ones
RUNS = 16  # runs of neighbours in a sample: codecs that code blocks need neighbours
MOST = 2**31  # B of all arrays of a file: COUNT samples of 500 large tensors


def sample(gradient: Array) -> Array:
    """Copy at most SAMPLE elements of a gradient, in evenly spread runs of neighbours: (m,)."""
    flat = gradient.reshape(-1)
    if len(flat) <= error.SAMPLE:
        return flat.copy()
    length = error.SAMPLE // RUNS
    starts = np.arange(RUNS) * (len(flat) - length) // (RUNS - 1)
    return np.concatenate([flat[start : start + length] for start in starts.tolist()])


class Recorded:
    """Recorded gradients, and the errors that were measured on them."""

    def __init__(self, gradients: Mapping[str, Array], where: str) -> None:
        self.gradients = gradients  # tensor name -> (count, m) float32
        self.where = where  # the file
        self._known: dict[tuple[str, str], float] = {}

    def error(self, method: Method, tensor: Tensor) -> float:
        """Return the largest error of the recorded steps, of a method or of a pair's codec."""
        if method.lossless:
            return 0.0
        if not method.measurable:
            return float("inf")
        key = error.told_by(method), tensor.name
        if key not in self._known:
            every = self.gradients[tensor.name][-COUNT:]
            size = error.RANKS.size
            steps = [every[at : at + size] for at in range(len(every) % size, len(every), size)]
            self._known[key] = error.tried(key[0], tensor.sparsity, steps)
        return self._known[key]


class Recording:
    """Samples of the last gradients that one rank handed over, to be written to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # tensor name -> samples, the newest last
        self._kept: defaultdict[str, deque[Array]] = defaultdict(lambda: deque(maxlen=COUNT))

    def take(self, name: str, gradient: Array) -> None:
        """Keep a sample of a gradient, of any shape, unless it is not finite."""
        taken = sample(gradient)
        if finite(taken):
            self._kept[name].append(taken)

    def write(self) -> None:
        """Write the file that `read` reads."""
        write(self._path, {name: np.stack(values) for name, values in self._kept.items()})


def write(path: str | Path, gradients: Mapping[str, Array]) -> None:
    """Write tensor name -> (count, ...) float32."""
    content = BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, values in gradients.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, values, allow_pickle=False)
    files.write_bytes(path, content.getvalue())


def read(path: str | Path, net: Net) -> Recorded:
    """Read the gradients of a net's tensors; refuse gradients that do not fit them."""
    where = str(path)
    gradients: dict[str, Array] = {}
    with files.opened(path) as file:
        try:
            for entry in npz.entries(file, MOST):
                tensor = _tensor(entry.name, net)
                _check_shape(entry, tensor)
                gradients[entry.name] = _gradients(entry.array(), tensor)
        except CommschedError as error:
            raise CommschedError(f"{where}: {error}") from None
    if not gradients:
        raise CommschedError(f"{where}: no gradients; tensor name -> (count, ...) is expected")
    return Recorded(gradients, where)


def _tensor(name: str, net: Net) -> Tensor:
    if name not in net.tensors:
        near = nearest(name, net.tensors, 0.0)
        raise CommschedError(f"no tensor named {name!r} in net {net.name!r}{near}")
    return net.tensors[name]


def _check_shape(entry: npz.Entry, tensor: Tensor) -> None:
    """Refuse an array that cannot be gradients of a tensor, before the array is read."""
    what, shape = f"tensor {tensor.name!r}", entry.shape
    if entry.dtype.kind != "f":
        raise CommschedError(f"{what}: gradients are floats, got {entry.dtype}")
    least = error.RANKS.size
    if len(shape) < 2 or shape[0] < least:
        raise CommschedError(
            f"{what}: expected an array (count, ...) of at least {least} gradients, got shape"
            f" {list(shape)}"
        )
    numel = math.prod(shape[1:])
    if numel not in (tensor.numel, min(error.SAMPLE, tensor.numel)):
        raise CommschedError(
            f"{what}: a gradient has {tensor.numel} elements, got {numel} in shape {list(shape)}"
        )


def _gradients(values: Array, tensor: Tensor) -> Array:
    """Return a tensor's gradients as samples: (count, m) float32."""
    samples = np.stack([sample(one) for one in values[max(0, len(values) - COUNT) :]])
    with np.errstate(over="ignore"):
        samples = samples.astype(np.float32)
    if not np.isfinite(samples).all():
        raise CommschedError(f"tensor {tensor.name!r}: only finite float32 numbers are allowed")
    return samples
