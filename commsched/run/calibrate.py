"""Measure the links, the MPI's all-reduce and the codecs with the very code that a run uses."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from mpi4py import MPI

from commsched.codecs import CODECS, Array, Codec
from commsched.codecs.dense import Dense
from commsched.collectives import COLLECTIVES
from commsched.machine import CodecRate, Device, Group, Link, Machine
from commsched.methods.held import Reduced
from commsched.methods.payload import Payload
from commsched.plan import BucketSpec
from commsched.run import agree
from commsched.run.clock import now
from commsched.run.pacer import complete
from commsched.run.transfer import begin

SIZES = (256, 4096, 32768, 131072, 524288, 2 * 2**20, 4 * 2**20)  # B per message
ARENA = 64 * 2**20  # B that exchanges walk through: more than the caches hold
PAUSE = 1e-3  # s of sleep before each repeat
BLOCK = 262144  # elements of a codec's run: 1 MB, the size of a typical message
OVERHEAD = 0.25  # share of a small message's time that each end spends: rest is latency


class Silent(Dense):
    """Dense values that nobody adds: what is left is the message."""

    def add(self, packet: Array, out: Array) -> None:
        """Nothing."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Seconds that all measurements together may take."""

    seconds: float = 5.0

    def share(self, parts: int) -> float:
        """Seconds for one of `parts` equal measurements."""
        return self.seconds / parts


def calibrate(
    comm: MPI.Intracomm, budget: Budget, progress: Callable[[int, int], None] | None = None
) -> Machine:
    """A machine file's content for these ranks, measured with all of them at work at once.

    Where ranks share cores, what they do to each other is in the figures.
    """
    hosts = agree.gather_text(MPI.Get_processor_name(), comm)
    names = list(dict.fromkeys(hosts))
    nodes = tuple(names.index(host) for host in hosts)
    group = Group(ranks=tuple(range(comm.size)), nodes=nodes)
    many = len(names) > 1
    parts = (len(SIZES) + 1) * (1 + many) + len(SIZES) + 3 * len(CODECS) + 1
    done = iter(range(1, parts + 1))

    def step() -> float:
        if progress is not None:
            progress(next(done), parts)
        return budget.share(parts)

    inside, startup = _link(Exchanges(comm.Split(nodes[comm.rank], comm.rank)), step)
    lane = next(m.index(comm.rank) for m in group.members if comm.rank in m)
    between = inside
    if many:
        between, startup = _link(Exchanges(comm.Split(lane, comm.rank)), step)
    everyone = Exchanges(comm)
    levelled = np.maximum.accumulate(
        [everyone.seconds("native", CODECS["dense"], n // 4, step()) for n in SIZES]
    )
    native = tuple((float(n), float(t)) for n, t in zip(SIZES, levelled, strict=True))
    device = _device(everyone, step)
    source = f"measured {time.strftime('%Y-%m-%d')} on {', '.join(names[:4])}, {comm.size} ranks"
    return Machine(
        name="calibrated",
        node_of_rank=nodes,
        inside=replace(inside, source=source),
        between=replace(between, source=source),
        nic=None,
        startup=startup,
        device=replace(device, source=source),
        native=native,
        source=f"{source}, {MPI.Get_library_version().splitlines()[0]}".strip("\x00 "),
    )


def repeat(comm: MPI.Intracomm, seconds: float, work: Callable[[], None]) -> float:
    """Median s of one `work`, the slowest rank's, over at least 3 repeats; the first is dropped.

    Every repeat begins from sleep, as an exchange of a training step does: wake-up, cold caches
    and the ranks' skew are in it.
    """
    work()
    times: list[float] = []
    end = now() + seconds
    enough = np.zeros(1, np.uint8)
    while not enough[0]:
        enough[0] = now() > end and len(times) >= 3
        comm.Allreduce(MPI.IN_PLACE, enough, op=MPI.MAX)
        start = now() + PAUSE
        time.sleep(PAUSE)
        work()
        times.append(now() - start)
    return agree.largest(float(np.median(times)), comm)


class Exchanges:
    """Dense exchanges of any size, on memory that no cache still holds."""

    def __init__(self, comm: MPI.Comm) -> None:
        assert isinstance(comm, MPI.Intracomm)
        self.comm = comm
        self.group = Group(ranks=tuple(range(comm.size)), nodes=(0,) * comm.size)
        self.arena = np.zeros(max(ARENA, SIZES[-1] * comm.size) // 4, np.float32)
        self._next = 0

    def window(self, numel: int) -> Array:
        """The next `numel` elements of the arena, (numel,) float32."""
        if self._next + numel > len(self.arena):
            self._next = 0
        self._next += numel
        return self.arena[self._next - numel : self._next]

    def seconds(self, collective: str, codec: Codec, numel: int, budget: float) -> float:
        """Median s of an all-reduce of `numel` elements from a common start."""
        schedule = COLLECTIVES[collective](self.group)
        payload = Payload.reducing(schedule, codec, BucketSpec.uniform(numel))

        def work() -> None:
            held = Reduced(self.window(numel), payload, {}, None)
            complete(begin(schedule, held, self.comm, 0))

        return repeat(self.comm, budget, work)

    def rounds(self, collective: str) -> int:
        """Hops that one rank waits for, one after the other."""
        schedule = COLLECTIVES[collective](self.group)
        assert schedule.rounds is not None
        return sum(1 for _ in schedule.rounds())


def _link(exchanges: Exchanges, step: Callable[[], float]) -> tuple[Link, float]:
    """A link class and the start-up of an exchange, from rings in which all ranks are at work.

    An exchange of h hops of n bytes takes S + h (L + 2 o + w(n)); a ring and a recursive doubling
    of tiny messages differ in h, which tells S from L + 2 o. w is kept as a measured curve.
    """
    ranks = exchanges.comm.size
    if ranks == 1:
        for _ in range(len(SIZES) + 1):
            step()
        return Link(latency=0.0, overhead=0.0, per_byte=0.0), 0.0
    hops, few = exchanges.rounds("ring"), exchanges.rounds("doubling")
    times = [exchanges.seconds("ring", Silent(), n // 4 * ranks, step()) for n in SIZES]
    short = exchanges.seconds("doubling", Silent(), SIZES[0] // 4, step())
    hop = max(times[0] - short, 0.0) / (hops - few) if hops > few else times[0] / hops
    startup = max(times[0] - hops * hop, 0.0)
    # A longer message takes no less time: what the noise says otherwise is levelled.
    curve = np.maximum.accumulate([(t - startup) / hops - hop for t in times])
    curve -= curve[0]
    link = Link(
        latency=hop * (1 - 2 * OVERHEAD),
        overhead=hop * OVERHEAD,
        per_byte=float(curve[-1] - curve[-2]) / (SIZES[-1] - SIZES[-2]),
        points=(
            (0.0, 0.0),
            *((float(n), float(t)) for n, t in zip(SIZES[1:], curve[1:], strict=True)),
        ),
    )
    return link, startup


def _device(exchanges: Exchanges, step: Callable[[], float]) -> Device:
    """Memory bandwidth from a copy, and the codecs' rates, while all ranks do the same."""
    comm = exchanges.comm

    def work() -> None:
        np.copyto(exchanges.window(BLOCK), exchanges.window(BLOCK))

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
    for _ in range(len(exchanges.arena) // BLOCK):
        exchanges.window(BLOCK)[:] = values
    packet = codec.encode(values, {})
    zero_copy = codec.encode_traffic == 0.0
    encode = repeat(comm, step(), lambda: _drop(codec.encode(exchanges.window(BLOCK), {})))
    add = repeat(comm, step(), lambda: codec.add(packet, exchanges.window(BLOCK)))
    decode = repeat(comm, step(), lambda: codec.decode(packet, exchanges.window(BLOCK)))
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
