"""Speeds of memory and codecs, with all ranks at work at once."""

import os
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from commsched.codecs import CODECS, Codec
from commsched.machine import CodecRate, Device
from commsched.run.probe import Arena, repeat

LARGE, SMALL = 262144, 8192  # elements: a message of a large bucket, and of a small one
SIDE, RANK = 512, 2  # a product as PowerSGD's: a bucket as a matrix, by two columns
DENSITY = 0.05  # of what codecs of sparse gradients get
ROOM = 16 * 2**20  # B of the arena that a codec walks through: they are many, and each fills it
LEAST = 1  # repeats at the least: the time goes to the fast codecs, which repeat more


def device(comm: MPI.Intracomm, arena: Arena, budget: Callable[[], float]) -> Device:
    """Memory bandwidth from a copy, arithmetic from a narrow product, and the rates of all codecs.

    `budget` gives s for each.
    """

    def copy() -> None:
        np.copyto(arena.window(LARGE), arena.window(LARGE))

    def multiply() -> None:
        np.matmul(arena.window(LARGE).reshape(-1, SIDE), narrow)

    narrow = np.ones((SIDE, RANK), np.float32)
    bandwidth = 2 * 4 * LARGE / repeat(comm, budget(), copy)
    flops = 2 * LARGE * RANK / repeat(comm, budget(), multiply)
    room = arena.part(ROOM)
    return Device(
        name="host",
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / comm.size,
        bandwidth=bandwidth,
        gather=3 / bandwidth,
        flops=flops,
        codecs={name: _rate(comm, room, codec, budget) for name, codec in CODECS.items()},
    )


def _rate(
    comm: MPI.Intracomm, arena: Arena, codec: Codec, budget: Callable[[], float]
) -> CodecRate:
    """A codec's seconds as a line through two sizes.

    Values come from memory, packets from the cache: they have just arrived or are about to leave.
    """
    small, large = (_times(comm, arena, codec, numel, budget) for numel in (SMALL, LARGE))
    slopes = np.maximum(large[0] - small[0], 0.0) / (large[1] - small[1])
    fixed = max(float(np.mean(small[0] - slopes * small[1])), 0.0)
    zero_copy = codec.encode_traffic == 0.0
    return CodecRate(
        encode=0.0 if zero_copy else float(slopes[0]),
        add=float(slopes[1]),
        decode=0.0 if zero_copy else float(slopes[2]),
        fixed=fixed,
        source=f"runs of {SMALL} and {LARGE} elements, sparse ones at a density of {DENSITY:.0%}",
    )


def _times(
    comm: MPI.Intracomm, arena: Arena, codec: Codec, numel: int, budget: Callable[[], float]
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of encode, add and decode of one run, and the bytes that each counts: (3,) each."""
    rng = np.random.default_rng(comm.rank)
    values = rng.standard_normal(numel).astype(np.float32)
    if not codec.fixed:
        values[rng.random(numel) > DENSITY] = 0.0
    arena.fill(values)
    packet = codec.encode(values, {})

    def encode() -> None:
        run = arena.window(numel)
        made = codec.encode(run, {})
        if codec.addable and not codec.lossless:
            codec.decode(made, run)  # a sender, too, goes on with what it sent

    seconds = [
        repeat(comm, budget(), work, LEAST)
        for work in (
            encode,
            lambda: codec.add(packet, arena.window(numel)),
            lambda: codec.decode(packet, arena.window(numel)),
        )
    ]
    return np.array(seconds), np.array([values.nbytes, packet.nbytes, values.nbytes], np.float64)
