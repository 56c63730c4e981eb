"""Measure the speed of memory and codecs while all ranks work at once."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import lru_cache, partial
from itertools import cycle, islice
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from commsched.calibrate.traits import LARGE_THERE
from commsched.coding.codec import Codec, State
from commsched.coding.registry import CODECS
from commsched.exchange.hashed_shares import COUNTED
from commsched.exchange.pair import encode_with_feedback
from commsched.kernels.finite_check import finite
from commsched.kernels.hashing import index_sets
from commsched.kernels.merge import Listed, listed, merged
from commsched.kernels.modules import beside, module_of
from commsched.machine.device import SAMPLED, SPARSE
from commsched.machine.model import CodecRate, Device
from commsched.net.bucket import BucketSpec
from commsched.run.engine.probe import Arena, cpu_seconds_of_two, median_seconds
from commsched.run.wire.placement import ON_HOST, Placement
from commsched.simulate.clocks import RESTED

Rates = TypeVar("Rates", Device, CodecRate)
# Returns the s of some work after a long sleep, and right after another one.
Clock = Callable[[Callable[[], None]], tuple[float, float]]

LARGE, SMALL = 2**20, 2**13  # elements: a message of a large bucket, and of a small one
SIDE, RANK = 512, 2  # shape of PowerSGD's product: a bucket as a matrix, times two columns
# A codec whose `encode_traffic` is larger computes, and hardly waits for memory: its large run is
# shorter by a factor, because a Bloom filter's takes 0.1 s.
SLOW, SHORTER = 100.0, 4
LOW = 0.01  # times the seconds per byte to encode at SAMPLED, at least
WINDOWS = 4  # packets that a codec decodes in turn, and large runs that a list is made from
TOGETHER = 3  # packets that are combined with another one
AGAIN = 1  # of the seconds of a clock, those right after another call
CALL = 1e-6  # s, the least time of a call; not 0, because the fit multiplies it
LEAST = 1  # repeats in a pass, at least; the median of PASSES ignores a disturbed one
PASSES = 3  # over all codecs, apart in time: others may slow a machine for a second


def measured() -> list[Codec]:
    """List the codecs whose rates are measured."""
    return [CODECS[name] for codec in CODECS.values() for name in (codec.name, *codec.alike)]


def typical(passes: Sequence[Device]) -> Device:
    """Return the device whose every number is the median of those of some passes."""
    found = passes[0]
    codecs = {name: _median([one.codecs[name] for one in passes]) for name in found.codecs}
    return replace(_median(passes), codecs=codecs)


def _median(passes: Sequence[Rates]) -> Rates:
    numbers = {
        field.name: statistics.median(getattr(one, field.name) for one in passes)
        for field in fields(passes[0])
        if isinstance(getattr(passes[0], field.name), float)
    }
    return replace(passes[0], **numbers)


def device(
    comm: MPI.Intracomm, arena: Arena, budget: Callable[[], float], ranks_per_core: float
) -> Device:
    """Measure memory bandwidth by a copy, flops by a narrow product, and the rates of all codecs.

    One pass of PASSES. `budget` returns the s for the next measurement.
    """
    size, module = large(arena.place), arena.place.device.module

    def copy() -> None:
        np.copyto(arena.window(size), arena.window(size))
        arena.end()

    def multiply() -> None:
        np.matmul(arena.window(size).reshape(-1, SIDE), narrow)
        arena.end()

    def gather() -> None:
        bucket = arena.window(size)
        np.copyto(bucket, arena.window(size))
        finite(bucket)
        arena.end()

    narrow = module.ones((SIDE, RANK), np.float32)
    clock = _clock(comm, arena.place, budget, ranks_per_core)
    bandwidth = 2 * 4 * size / clock(copy)[AGAIN]
    flops = 2 * size * RANK / clock(multiply)[AGAIN]
    lists = [_nonzeros(comm.rank + turn * comm.size, arena) for turn in range(2)]
    dealing = clock(lambda: _deal(lists[0], comm.size, arena))[AGAIN] / len(lists[0].index)
    merging = clock(lambda: _merge(lists, arena))[AGAIN] / sum(len(each.index) for each in lists)
    lost = Arena(arena.values.nbytes, arena.place)
    name, memory = arena.place.device.about()
    codecs = {codec.name: _rate(comm, arena, lost, codec, clock) for codec in measured()}
    call = max(codecs["dense"].fixed, CALL)
    return Device(
        name=name,
        memory=memory / comm.size,
        bandwidth=bandwidth,
        gather=clock(gather)[AGAIN] / (4 * size),
        scale=2 / bandwidth,
        fixed_scale=call,
        fixed_gather=call,
        flops=flops,
        deal=dealing,
        merge=merging,
        precision="float32",
        codecs=codecs,
    )


def _nonzeros(seed: int, arena: Arena) -> Listed:
    """Return non-zeros of a run that no cache holds, at a density of SAMPLED."""
    values = np.random.default_rng(seed).random(WINDOWS * large(arena.place), np.float32)
    return listed(beside(np.where(values < SAMPLED, values, np.float32(0.0)), arena.values))


def _deal(nonzeros: Listed, owners: int, arena: Arena) -> None:
    sets = index_sets(module_of(arena.values), WINDOWS * large(arena.place), owners)
    COUNTED.deal(nonzeros, sets)
    arena.end()


def _merge(lists: list[Listed], arena: Arena) -> None:
    merged(lists, WINDOWS * large(arena.place))
    arena.end()


def _clock(
    comm: MPI.Intracomm, place: Placement, budget: Callable[[], float], ranks_per_core: float
) -> Clock:
    """Return a clock that repeats work for `budget` s and measures it while all ranks work.

    On a processor, the clock is the processor time of all ranks that share a core, because in short
    work it is chance who waits for a core.
    """

    def on_device(work: Callable[[], None]) -> tuple[float, float]:
        return (median_seconds(comm, budget(), work, LEAST),) * 2

    def on_cores(work: Callable[[], None]) -> tuple[float, float]:
        first, again = cpu_seconds_of_two(comm, budget(), work, RESTED, LEAST)
        return ranks_per_core * first, ranks_per_core * again

    return on_cores if place is ON_HOST else on_device


def large(place: Placement) -> int:
    """Return the number of elements of a large run."""
    return LARGE if place is ON_HOST else LARGE_THERE


def _rate(comm: MPI.Intracomm, arena: Arena, lost: Arena, codec: Codec, clock: Clock) -> CodecRate:
    """Fit a codec's seconds by a line through two sizes.

    Values come from memory; packets come from the cache if it holds WINDOWS of them, as right after
    a message.
    """
    times = partial(_times, comm, arena, lost, codec, clock)
    short = times(SMALL)
    most = large(arena.place)
    if codec.encode_traffic > SLOW:
        most = max(most // SHORTER, 2 * SMALL)
    long = times(most)
    slopes = np.maximum(long[0] - short[0], 0.0) / (long[1] - short[1])  # (2, 4)
    fixed = np.maximum(short[0] - slopes * short[1], 0.0)
    encode, again = slopes[:, 0].max(), slopes[AGAIN]  # no call is shorter after a sleep
    call = fixed[:, 0].max()
    zero_copy = codec.encode_traffic == 0.0
    sparse = full = np.ones(4)  # times the slopes
    if _omits_zeros(codec, most):
        grown = np.maximum(long[0][AGAIN] - short[0][AGAIN], CALL)
        sparse, full = (
            np.maximum((times(most, share)[0][AGAIN] - short[0][AGAIN]) / grown, LOW)
            for share in (SPARSE, 1.0)
        )
    kept = max(again[3] - again[0], LOW * again[0], CALL / (4 * most))  # not 0: not measured
    return CodecRate(
        encode=0.0 if zero_copy else float(encode),
        encode_again=float(again[0] / encode) if encode else 1.0,
        add=float(again[1]),
        decode=0.0 if zero_copy else float(again[2]),
        fixed=float(call),
        fixed_again=float(fixed[AGAIN, 0] / call) if call else 1.0,
        fixed_add=float(fixed[AGAIN, 1]),
        fixed_decode=float(fixed[AGAIN, 2]),
        encode_sparse=float(sparse[0]),
        encode_dense=float(full[0]),
        decode_sparse=float(sparse[2]),
        decode_dense=float(full[2]),
        feedback=float(kept) if codec.feedback else None,
        source=f"runs of {SMALL} and {most} elements, sparse ones at a density of {SAMPLED:.0%};"
        f" encode and decode also at {SPARSE:.1%} and 100%",
    )


def _times(
    comm: MPI.Intracomm,
    arena: Arena,
    lost: Arena,
    codec: Codec,
    clock: Clock,
    numel: int,
    density: float = SAMPLED,
) -> tuple[np.ndarray, np.ndarray]:
    """Return seconds and bytes of encode, add, decode, encode with feedback of a run.

    Seconds after a sleep and again, (2, 4), and bytes, (4,).
    """
    values = _drawn(comm.rank, numel, density if _omits_zeros(codec, numel) else 1.0)
    arena.fill(values)
    packet = codec.encode(arena.window(numel), {})
    packets = cycle([packet.copy() for _ in range(WINDOWS)])
    state: State = {}  # some codecs use from step to step what they allocate in the first

    def keep() -> None:
        state["gradient"], state["lost"] = arena.window(numel), lost.window(numel)
        encode_with_feedback(codec, state)
        arena.end()

    def encode() -> None:
        run = arena.window(numel)
        made = codec.encode(run, state)
        if codec.addable and not codec.lossless:
            codec.decode(made, run)  # the sender, too, continues with the decoded values
        arena.end()

    def add() -> None:
        codec.add(next(packets), arena.window(numel))
        arena.end()

    def decode() -> None:
        codec.decode(next(packets), arena.window(numel))
        arena.end()

    def combine() -> None:
        codec.combine(list(islice(packets, 1 + TOGETHER)), arena.window(numel))
        arena.end()

    kept = 0.0, 0.0
    if codec.feedback:
        lost.values.fill(0.0)
        kept = clock(keep)
        arena.fill(values)  # feedback has changed them
    coded, decoded = np.array(clock(encode)), np.array(clock(decode))
    # Some codecs add packets before they decode them.
    apart = type(codec).combine is Codec.combine
    added = clock(add) if apart else np.maximum(clock(combine) - decoded, 0.0) / TOGETHER
    nbytes = values.nbytes, packet.nbytes, values.nbytes, values.nbytes
    return np.array([coded, added, decoded, kept]).T, np.array(nbytes, np.float64)


@lru_cache(maxsize=8)
def _drawn(seed: int, numel: int, density: float) -> npt.NDArray[np.float32]:
    """Return values to encode, (numel,), the same for all codecs."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(numel).astype(np.float32)
    values[rng.random(numel) > density] = 0.0
    return values


def _omits_zeros(codec: Codec, numel: int) -> bool:
    """Tell whether a codec is for sparse runs: they are measured with those."""
    return not codec.fixed and not shortens(codec, numel)


def shortens(codec: Codec, numel: int) -> bool:
    """Tell whether the codec shortens a run without zeros; if not, it is for sparse runs."""
    whole = codec.nbytes(BucketSpec.uniform(numel), np.zeros(1, np.int64), np.array([numel]), 1)
    return float(whole[0]) < 4.0 * numel
