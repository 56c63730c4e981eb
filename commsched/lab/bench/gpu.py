"""Benchmark of codecs on a GPU against a copy: a codec's fewest bytes to move, per second.

The copy is between arrays on the device in the same turns; it reads and writes every byte.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from commsched.arrays import Array
from commsched.coding.codec import Codec, State
from commsched.coding.registry import CODECS
from commsched.exchange.pair import encode_with_feedback
from commsched.kernels import pruned
from commsched.kernels.device import gpus
from commsched.kernels.hashing import grouped
from commsched.kernels.random import generator
from commsched.kernels.select import above, threshold_of
from commsched.lab.bench import codecs
from commsched.lab.bench.codecs import PARTITION, PARTS, SHARE, Timing, gradient, normal

NUMEL = 2**26  # float32: 256 MB
SELECTION = "topk:0.01:sampled"
GATHER = "gather"  # SAMO's gather of the gradients of unpruned values
PRUNED = 0.9  # share of elements that SAMO prunes
SECTOR = 32  # smallest unit in B that a GPU reads from its memory
# Required share of a copy's bytes per second; for the partition, of the selection's seconds.
ASKED = {
    "fp16": 0.8,
    "bf16": 0.8,
    "quant:8": 0.6,
    SELECTION: 0.4,
    PARTITION: 0.1,
    "fft:0.15": 0.15,
    GATHER: 0.5,
}
EXTRA = 1.5  # extra memory allowed, as a multiple of the gradient's bytes
STAGED, POINTED = 0.8, 3.0  # required rates: staged over copy, pointers over staged


class GpuWork(NamedTuple):
    """A call to measure, and the bytes that it must read and write.

    before: preparation of each call, which is not timed.
    """

    name: str
    fewest: int
    run: Callable[[], object]
    before: Callable[[], object] = lambda: None


class GpuRow(NamedTuple):
    """Times and memory of one codec for a gradient of `numel` float32 on the GPU."""

    codec: str
    numel: int
    fewest: int  # B that the codec must read and write
    seconds: Timing
    copy: Timing  # of the gradient, repeat for repeat
    extra: int  # B on the device beside gradient and state, at the peak
    asked: float | None

    @property
    def of_copy(self) -> float:
        """The codec's bytes per second over those of the copy, from medians."""
        return self.fewest / self.seconds.median / (8 * self.numel / self.copy.median)


def chosen(names: list[str] | None) -> list[str]:
    """Return the names to measure; by default those with a required rate."""
    return codecs.chosen(names, (PARTITION, GATHER), ASKED)


def row(name: str, numel: int, repeats: int) -> GpuRow:
    """Measure one codec or kernel on the current GPU."""
    codecs.check(numel, repeats)
    gpus()
    import commsched.kernels.cuda.timing as clock
    from commsched.kernels.cuda.launch import array_module

    module = array_module()
    work = made(name, numel, module)
    values, out = module.asarray(normal(numel)), module.empty(numel, np.float32)
    seconds = np.empty((repeats + 1, 2))
    for turn in seconds:
        work.before()
        turn[:] = clock.seconds(work.run), clock.seconds(partial(module.copyto, out, values))
    work.before()
    extra = clock.extra_bytes(work.run)
    taken, copy = map(Timing.of, seconds.T)
    return GpuRow(name, numel, work.fewest, taken, copy, extra, ASKED.get(name))


def made(name: str, numel: int, module: Any) -> GpuWork:
    """Return the named work, on arrays of the array module."""
    if name == PARTITION:
        return _partition(numel, module)
    if name == GATHER:
        return _gather(numel, module)
    codec = CODECS[name]
    values = module.asarray(gradient(codec, numel))
    return _encode_kept(codec, values) if codec.feedback else _encode(codec, values)


def give_back() -> None:
    """Return cached memory of this process to the GPU."""
    gpus()
    from commsched.kernels.cuda import timing

    timing.give_back()


def _encode(codec: Codec, values: Array) -> GpuWork:
    state = _state()
    nbytes = codec.encode(values, state).nbytes
    return GpuWork(codec.name, values.nbytes + nbytes, partial(codec.encode, values, state))


def _encode_kept(codec: Codec, values: Array) -> GpuWork:
    """Encode with error feedback: add the stored remainder, and store the new one."""
    state = _state()
    state |= {"gradient": values.copy(), "lost": 0 * values}

    def begin() -> None:
        state["gradient"][:] = values

    nbytes = encode_with_feedback(codec, state).nbytes
    run = partial(encode_with_feedback, codec, state)
    return GpuWork(codec.name, 3 * values.nbytes + nbytes, run, begin)


def _partition(numel: int, module: Any) -> GpuWork:
    """Divide the indices of the largest elements between owners: read and written as 8 B."""
    values = module.asarray(normal(numel))
    index = above(values, threshold_of(values, max(1, int(SHARE * numel))))
    return GpuWork(PARTITION, 16 * len(index), partial(grouped, index, PARTS))


def _gather(numel: int, module: Any) -> GpuWork:
    """Add the kept halves of a gradient to their sum: whole sectors are read of the gradient."""
    index = pruned.random_mask(
        numel, pruned.kept_of(numel, 1 - PRUNED), generator(0, 0, 0, "bench")
    )
    sectors = 1 + int(np.count_nonzero(np.diff(index // (SECTOR // 2))))
    state = pruned.prune(module.asarray(normal(numel)), module.asarray(index))
    halves = module.asarray(normal(numel).astype(np.float16))
    fewest = SECTOR * sectors + (4 + 2 + 2) * len(index)
    return GpuWork(
        GATHER, fewest, partial(pruned.pack, state, halves), lambda: state.packed.fill(0)
    )


def _state() -> State:
    return {"seed": 0, "step": 0, "rank": 0, "name": "bench"}
