"""Measure the links, the MPI's all-reduce and the codecs with the very code that a run uses."""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from mpi4py import MPI

from commsched.codecs import CODECS, Array, Codec
from commsched.machine import CodecRate, Device, Group, Machine
from commsched.run import agree, links
from commsched.run.probe import Arena, Exchanges, repeat

NATIVE = (256, 4096, 32768, 131072, 524288, 2 * 2**20, 8 * 2**20)  # B of the MPI's all-reduce
ARENA = 64 * 2**20  # B that exchanges walk through: more than the caches hold
BLOCK = 262144  # elements of a codec's run: 1 MB, the size of a typical message


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Seconds that all measurements together may take."""

    seconds: float = 5.0


def calibrate(
    comm: MPI.Intracomm, budget: Budget, progress: Callable[[int, int], None] | None = None
) -> Machine:
    """A machine file's content for these ranks, measured with all of them at work at once.

    Where ranks share cores, what they do to each other is in the figures.
    """
    hosts = agree.gather_text(socket.gethostname(), comm)
    names = list(dict.fromkeys(hosts))
    nodes = tuple(names.index(host) for host in hosts)
    group = Group(ranks=tuple(range(comm.size)), nodes=nodes)
    arena = Arena(max(ARENA, links.SIZES[-1] * comm.size))
    parts = 1 + len(NATIVE) + 3 * len(CODECS) + 1
    done = iter(range(1, parts + 1))

    def step(share: float = 0.5) -> float:
        """Seconds for the next part: half of the budget is the links'."""
        if progress is not None:
            progress(next(done), parts)
        return budget.seconds * share

    found = links.measure(comm, group, arena, step())
    everyone = Exchanges(comm, arena)
    small = 0.5 / (parts - 1)
    # A longer all-reduce takes no less time: what the noise says otherwise is levelled.
    dense = CODECS["dense"]
    native = np.maximum.accumulate(
        [everyone.seconds("native", dense, n // 4, step(small)) for n in NATIVE]
    )
    device = _device(everyone, lambda: step(small))
    source = f"measured {time.strftime('%Y-%m-%d')} on {', '.join(names[:4])}, {comm.size} ranks"
    nic = found.nic
    return Machine(
        name="calibrated",
        node_of_rank=nodes,
        inside=replace(found.inside, source=source),
        between=replace(found.between, source=source),
        nic=None if nic is None else replace(nic, source=source),
        overrides={n: replace(link, source=source) for n, link in found.overrides.items()},
        startup=found.startup,
        cores=len(os.sched_getaffinity(0)),
        device=replace(device, source=source),
        native=tuple((float(n), float(t)) for n, t in zip(NATIVE, native, strict=True)),
        source=f"{source}, {MPI.Get_library_version().splitlines()[0]}".strip("\x00 "),
    )


def _device(exchanges: Exchanges, step: Callable[[], float]) -> Device:
    """Memory bandwidth from a copy, and the codecs' rates, while all ranks do the same."""
    comm = exchanges.comm

    def work() -> None:
        np.copyto(exchanges.arena.window(BLOCK), exchanges.arena.window(BLOCK))

    copy = repeat(comm, step(), work)
    return Device(
        name="host",
        memory=float(_memory() / comm.size),
        bandwidth=2 * 4 * BLOCK / copy,
        flops=1e9,
        codecs={name: _codec(exchanges, codec, step) for name, codec in CODECS.items()},
    )


def _codec(exchanges: Exchanges, codec: Codec, step: Callable[[], float]) -> CodecRate:
    """Seconds per byte of encode, add and decode of one block of the size of a message.

    Values come from memory, packets from the cache: they have just arrived or are about to leave.
    """
    comm = exchanges.comm
    rng = np.random.default_rng(comm.rank)
    values = rng.standard_normal(BLOCK).astype(np.float32)
    if not codec.fixed:  # a sparse gradient: one element in a hundred
        values[rng.random(BLOCK) > 0.01] = 0.0
    for _ in range(len(exchanges.arena.values) // BLOCK):
        exchanges.arena.window(BLOCK)[:] = values
    packet = codec.encode(values, {})
    zero_copy = codec.encode_traffic == 0.0
    encode = repeat(comm, step(), lambda: _drop(codec.encode(exchanges.arena.window(BLOCK), {})))
    add = repeat(comm, step(), lambda: codec.add(packet, exchanges.arena.window(BLOCK)))
    decode = repeat(comm, step(), lambda: codec.decode(packet, exchanges.arena.window(BLOCK)))
    return CodecRate(
        encode=0.0 if zero_copy else encode / values.nbytes,
        add=add / packet.nbytes,
        decode=0.0 if zero_copy else decode / values.nbytes,
        source="one block of 1 MB, sparse ones at a density of 1 %",
    )


def _memory() -> int:
    """Bytes of main memory of this host."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _drop(packet: Array) -> None:
    """Forget a packet."""
