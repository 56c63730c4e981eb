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
from commsched.run.engine.probe import PAUSE, Arena, median_cpu_seconds, median_seconds
from commsched.run.wire.placement import ON_HOST, Placement
from commsched.simulate.clocks import RESTED

Rates = TypeVar("Rates", Device, CodecRate)
Clock = Callable[[Callable[[], None]], float]  # returns the s of some work

LARGE, SMALL = 2**20, 2**13  # elements: a message of a large bucket, and of a small one
SIDE, RANK = 512, 2  # shape of PowerSGD's product: a bucket as a matrix, times two columns
# A codec with a larger `encode_traffic` computes, and hardly waits for memory: its large run is
# shorter by a factor, because a Bloom filter's takes 0.1 s.
SLOW, SHORTER = 100.0, 4
LOW = 0.01  # least seconds per byte, as a share of those to encode at SAMPLED
WINDOWS = 4  # packets that a codec decodes in turn, and large runs from which a list is made
TOGETHER = 3  # packets that are combined with a further one
CALL = 1e-6  # s, the least time of a call; not 0, because the fit multiplies it
LEAST = 1  # repeats in a pass, at least; the median of PASSES ignores a disturbed one
PASSES = 3  # over all codecs, apart in time: others may slow a machine for a second


def measured() -> list[Codec]:
    """List the codecs whose rates are measured."""
    return [CODECS[name] for codec in CODECS.values() for name in (codec.name, *codec.alike)]


def typical(passes: Sequence[Device]) -> Device:
    """Return the device in which every number is the median over some passes."""
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
    about = comm, arena.place, budget, ranks_per_core
    clock = _clock(*about)
    rested = _clock(*about, True) if arena.place is ON_HOST else clock
    bandwidth = 2 * 4 * size / clock(copy)
    flops = 2 * size * RANK / clock(multiply)
    lists = [_nonzeros(comm.rank + turn * comm.size, arena) for turn in range(2)]
    dealing = clock(lambda: _deal(lists[0], comm.size, arena)) / len(lists[0].index)
    merging = clock(lambda: _merge(lists, arena)) / sum(len(each.index) for each in lists)
    lost = Arena(arena.values.nbytes, arena.place)
    name, memory = arena.place.device.about()
    codecs = {codec.name: _rate(comm, arena, lost, codec, clock, rested) for codec in measured()}
    call = max(codecs["dense"].fixed, CALL)
    return Device(
        name=name,
        memory=memory / comm.size,
        bandwidth=bandwidth,
        gather=clock(gather) / (4 * size),
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
    comm: MPI.Intracomm,
    place: Placement,
    budget: Callable[[], float],
    ranks_per_core: float,
    rested: bool = False,
) -> Clock:
    """Return a clock that repeats work for `budget` s and measures it while all ranks work.

    On a processor, the clock is the processor time of all ranks that share a core, because in short
    work it is chance who waits for a core: of work right after other work, or if `rested` after a
    long sleep. On a device it is the time from a short sleep.
    """
    if place is not ON_HOST:
        return lambda work: median_seconds(comm, budget(), work, LEAST)
    pause, before = (RESTED, 0) if rested else (PAUSE, 1)

    def clock(work: Callable[[], None]) -> float:
        return ranks_per_core * median_cpu_seconds(comm, budget(), work, LEAST, pause, before)

    return clock


def large(place: Placement) -> int:
    """Return the number of elements of a large run."""
    return LARGE if place is ON_HOST else LARGE_THERE


def _rate(
    comm: MPI.Intracomm, arena: Arena, lost: Arena, codec: Codec, clock: Clock, rested: Clock
) -> CodecRate:
    """Fit a codec's seconds by a line through two sizes.

    Values come from memory; packets come from the cache if it holds WINDOWS of them, as right after
    a message.
    """
    times = partial(_times, comm, arena, lost, codec, clock, rested)
    short = times(SMALL)
    most = large(arena.place)
    if codec.encode_traffic > SLOW:
        most = max(most // SHORTER, 2 * SMALL)
    long = times(most)
    slopes = np.maximum(long[0] - short[0], 0.0) / (long[1] - short[1])
    calls = np.maximum(short[0] - slopes * short[1], 0.0).tolist()
    sparse = full = np.ones(5)  # times the slopes
    if _omits_zeros(codec, most):
        grown = np.maximum(long[0] - short[0], CALL)
        sparse, full = (
            np.maximum((times(most, share)[0] - short[0]) / grown, LOW) for share in (SPARSE, 1.0)
        )
    kept = max(slopes[3] - slopes[0], LOW * slopes[0], CALL / (4 * most))  # not 0: not measured
    slept, call = max(slopes[0], slopes[4]), max(calls[0], calls[4])  # no call is shorter
    zero_copy = codec.encode_traffic == 0.0
    return CodecRate(
        encode=0.0 if zero_copy else float(slept),
        encode_again=float(slopes[0] / slept) if slept else 1.0,
        add=float(slopes[1]),
        decode=0.0 if zero_copy else float(slopes[2]),
        fixed=call,
        fixed_again=calls[0] / call if call else 1.0,
        fixed_add=calls[1],
        fixed_decode=calls[2],
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
    rested: Clock,
    numel: int,
    density: float = SAMPLED,
) -> tuple[np.ndarray, np.ndarray]:
    """Return seconds and bytes of a run: (5,) each.

    Of encode, add, decode, encode with feedback, and encode after a sleep.
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

    kept = 0.0
    if codec.feedback:
        lost.values.fill(0.0)
        kept = clock(keep)
        arena.fill(values)  # feedback has changed them
    seconds = [clock(encode), 0.0, clock(decode), kept, 0.0]
    seconds[4] = seconds[0] if rested is clock else rested(encode)
    # Some codecs add packets before they decode them.
    apart = type(codec).combine is Codec.combine
    seconds[1] = clock(add) if apart else max(clock(combine) - seconds[2], 0.0) / TOGETHER
    raw, wire = values.nbytes, packet.nbytes
    return np.array(seconds), np.array([raw, wire, raw, raw, raw], np.float64)


@lru_cache(maxsize=8)
def _drawn(seed: int, numel: int, density: float) -> npt.NDArray[np.float32]:
    """Return values to encode, (numel,), equal for all codecs."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(numel).astype(np.float32)
    values[rng.random(numel) > density] = 0.0
    return values


def _omits_zeros(codec: Codec, numel: int) -> bool:
    """Tell whether a codec is for sparse runs, so that it is measured with these."""
    return not codec.fixed and not shortens(codec, numel)


def shortens(codec: Codec, numel: int) -> bool:
    """Tell whether the codec shortens a run without zeros; if not, it is for sparse runs."""
    whole = codec.nbytes(BucketSpec.uniform(numel), np.zeros(1, np.int64), np.array([numel]), 1)
    return float(whole[0]) < 4.0 * numel
