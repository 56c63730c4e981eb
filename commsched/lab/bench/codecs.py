"""Benchmark of codecs on one core against a memory copy that is timed in the same turns."""

import itertools
import time
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import numpy as np

from commsched.arrays import Array, Floats
from commsched.coding.codec import Codec, State
from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.kernels.compiled import compiled
from commsched.kernels.hashing import grouped
from commsched.kernels.merge import Listed, merged
from commsched.kernels.select import above, threshold_of
from commsched.net.sparsity import Sparsity

NUMEL = 2**24
REPEATS = 10
PIECE = 2**17  # elements per piece in which lists are summed
SHARE = 0.01  # density of the gradients that lossless sparse codecs encode
PARTS = 8  # owners among which the indices are partitioned
PARTITION = "partition"  # Zen's partition of the indices of the largest elements
MERGES = "merge", "merge-unique"  # sums of PARTS ranks' lists: our kernel's and np.unique's
# GB/s of gradient that issue 4 asks of the encoder.
ASKED = {
    "topk:0.01:sampled": 4.0,
    PARTITION: 4.0,
    "quant:8": 2.0,
    "quant:8:nearest": 2.0,
    "fp16": 2.0,
    "bf16": 2.0,
}


class Timing(NamedTuple):
    """Seconds of one repeat: median, minimum and maximum."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, seconds: Floats) -> "Timing":
        """Summarise repeats, (n,) s, without the first one, which warms up."""
        counted = seconds[1:]
        return cls(float(np.median(counted)), float(counted.min()), float(counted.max()))


class CodecRow(NamedTuple):
    """Times of one codec on a gradient of `numel` float32."""

    codec: str
    numel: int
    device: str
    encode: Timing  # to encode; or to do the whole partition or sum
    add: Timing | None  # None: not addable, or not a codec
    decode: Timing | None
    nbytes: int  # on the wire
    copy: Timing  # of the gradient in memory, repeat for repeat
    asked: float | None  # required GB/s of gradient; None: no requirement


def chosen(
    names: list[str] | None,
    others: Collection[str] = (PARTITION, *MERGES),
    asked: Iterable[str] = ASKED,
) -> list[str]:
    """Return the codecs, and `others`, to measure; by default those with a required rate."""
    if names == ["all"]:
        return [*CODECS, *others]
    return [name if name in others else CODECS[name].name for name in names or asked]


def check(numel: int, repeats: int) -> None:
    """Reject a benchmark that measures nothing."""
    if numel < 1 or repeats < 1:
        raise CommschedError(f"--numel and --repeats must be at least 1, got {numel}, {repeats}")


def row(name: str, numel: int, repeats: int) -> CodecRow:
    """Measure one codec, Zen's partition of indices, or a sum of lists."""
    check(numel, repeats)
    kinds = {PARTITION: _partition} | dict.fromkeys(MERGES, _merge)
    return kinds.get(name, _codec)(name, numel, repeats)


def gigabytes(timing: Timing | None, numel: int) -> float | None:
    """Return GB of gradient per second, from the median."""
    return None if timing is None else 4e-9 * numel / timing.median


def _codec(name: str, numel: int, repeats: int) -> CodecRow:
    codec = CODECS[name]
    values, out = gradient(codec, numel), np.zeros(numel, np.float32)
    state: State = {"seed": 0, "step": 0, "rank": 0, "name": "bench"}
    # A packet may be a view of the gradient; nothing here writes to it.
    packet = codec.encode(values, state).view(np.uint8)
    copy, encode, add, decode = _timed(
        (
            lambda: np.copyto(out, values),
            lambda: codec.encode(values, state),
            lambda: codec.add(packet, out),
            lambda: codec.decode(packet, out),
        ),
        repeats,
    )
    return CodecRow(
        name, numel, _device(numel), encode, add, decode, packet.nbytes, copy, ASKED.get(name)
    )


def _partition(name: str, numel: int, repeats: int) -> CodecRow:
    """Divide the indices of the largest elements between owners by hash."""
    values, out = normal(numel), np.zeros(numel, np.float32)
    index = above(values, threshold_of(values, max(1, int(SHARE * numel))))
    work = (lambda: np.copyto(out, values), lambda: grouped(index, PARTS))
    copy, encode = _timed(work, repeats)
    return CodecRow(name, numel, "cpu", encode, None, None, 4 * len(index), copy, ASKED[name])


def _merge(name: str, numel: int, repeats: int) -> CodecRow:
    """Sum the lists of PARTS ranks in pieces of PIECE elements."""
    values, out = normal(numel), np.zeros(numel, np.float32)
    law = Sparsity(law="uniform", density=SHARE)
    lists = []
    for rank in range(PARTS):
        index = law.support(numel, np.random.default_rng([rank, 1]))
        lists.append(Listed(index, values.take(index)))
    cuts = [*range(0, numel, PIECE), numel]
    pieces = [
        [each.part(first, stop) for each in lists] for first, stop in itertools.pairwise(cuts)
    ]
    add = merged if name == MERGES[0] else _unique
    work = (lambda: np.copyto(out, values), lambda: [add(each, PIECE) for each in pieces])
    copy, seconds = _timed(work, repeats)
    nbytes = 8 * sum(len(each.index) for each in lists)
    return CodecRow(name, numel, _device(PIECE), seconds, None, None, nbytes, copy, None)


def _unique(lists: list[Listed], numel: int) -> Listed:
    """Sum lists by sorting all indices, as a simple implementation would."""
    entries = np.concatenate([each.index for each in lists])
    index, places = np.unique(entries, return_inverse=True)
    sums = np.zeros(len(index), np.float32)
    np.add.at(sums, places, np.concatenate([each.values for each in lists]))
    return Listed(index, sums)


def _timed(work: tuple[Callable[[], object], ...], repeats: int) -> list[Timing]:
    """Time all callables in turns, so that load affects them equally."""
    seconds = np.empty((repeats + 1, len(work)))
    for turn in seconds:
        for place, each in enumerate(work):
            begin = time.perf_counter()
            each()
            turn[place] = time.perf_counter() - begin
    return [Timing.of(each) for each in seconds.T]


def gradient(codec: Codec, numel: int) -> Array:
    """Return normal values: in all elements, or in 1 % for codecs of sparse gradients."""
    values = normal(numel)
    if codec.fixed or not codec.lossless:
        return values
    law = Sparsity(law="uniform", density=SHARE)
    sparse = np.zeros(numel, np.float32)
    support = law.support(numel, np.random.default_rng(1))
    sparse[support] = values[support]
    return sparse


def normal(numel: int) -> Array:
    """Return normal float32 values from a fixed seed."""
    return np.random.default_rng(0).standard_normal(numel, np.float32)


def _device(numel: int) -> str:
    """Name the device, and whether compiled kernels handle gradients of this length."""
    return "cpu" if compiled(np.empty(numel, np.float32)) is None else "cpu, compiled"
