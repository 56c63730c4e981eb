"""Timing of exchanges among some ranks, from sleep and on cold memory, as in a training step."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import TypeVar

import numpy as np
from mpi4py import MPI

from commsched.arrays import Array
from commsched.coding.codec import Codec
from commsched.coding.dense import Dense
from commsched.exchange.endpoint import ReducingEndpoint
from commsched.exchange.payload import Payload
from commsched.kernels.modules import beside
from commsched.machine.model import Group
from commsched.net.bucket import BucketSpec
from commsched.run.engine.prepare import prepared
from commsched.run.engine.prepared_exchange import Landing, Prepared
from commsched.run.engine.transfer import begin
from commsched.run.engine.wait_for_messages import complete
from commsched.run.job import agree
from commsched.run.job.clock import now
from commsched.run.wire.path import Exchange
from commsched.run.wire.placement import ON_HOST, Placement
from commsched.schedule.registry import COLLECTIVES

Told = TypeVar("Told")

PAUSE = 1e-3  # s of sleep before each repeat
IDLE = 2e-3  # s between polls of ranks that wait while others measure
ROW = 100  # back-to-back exchanges
TURNS = 4  # most prepared exchanges, each in its own memory


class Silent(Dense):
    """Dense values that are not added, so that only messages are timed."""

    def add(self, packet: Array, out: Array) -> None:
        """Do nothing."""

    def plain_sum(self, packet: Array, out: Array) -> tuple[Array, Array] | None:
        return packet[:0], out[:0]


def median_seconds(
    comm: MPI.Intracomm, seconds: float, work: Callable[[], None], least: int = 3
) -> float:
    """Return the median s of one `work` on the slowest rank, over `least` repeats or more.

    The first repeat is dropped. Every repeat begins from sleep, as an exchange of a training step
    does, and so contains wake-up, cold caches and the ranks' skew.
    """
    lasted, _ = _repeated(comm, seconds, work, least)
    return agree.largest(float(np.median(lasted)), comm)


def median_cpu_seconds(
    comm: MPI.Intracomm,
    seconds: float,
    work: Callable[[], None],
    least: int = 3,
    pause: float = PAUSE,
    before: int = 1,
) -> float:
    """Return the median s of processor time of one `work` in its thread, as a mean over the ranks.

    On shared cores processor time varies much less than elapsed time, because it does not include
    waiting for a core. The `work` follows a sleep of `pause` s and `before` others: in an exchange
    they are consecutive.
    """

    def last() -> float:
        for _ in range(before):
            work()
        start = time.thread_time()
        work()
        return time.thread_time() - start

    _, taken = _repeated(comm, seconds, last, least, pause)
    return float(np.mean(agree.gather_numbers(float(np.median(taken)), comm)))


def _repeated(
    comm: MPI.Intracomm,
    seconds: float,
    work: Callable[[], Told],
    least: int,
    pause: float = PAUSE,
) -> tuple[list[float], list[Told]]:
    """Run `least` repeats or more on this rank; return the seconds and the result of each."""
    work()
    lasted: list[float] = []
    told: list[Told] = []
    end = now() + seconds
    enough = np.zeros(1, np.uint8)
    while not enough[0]:
        start = now() + pause
        time.sleep(pause)
        told.append(work())
        lasted.append(now() - start)
        enough[0] = now() > end and len(lasted) >= least
        comm.Allreduce(MPI.IN_PLACE, enough, op=MPI.MAX)
    return lasted, told


def sleeping_barrier(comm: MPI.Intracomm) -> None:
    """Wait for all ranks by sleeping; a blocking barrier would take a core from a measurement."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(IDLE)


class Arena:
    """Memory to exchange and to code, used in turn so that no cache holds it."""

    def __init__(self, nbytes: int, place: Placement = ON_HOST) -> None:
        self.place = place
        self.values = place.device.module.zeros(nbytes // 4, np.float32)
        self.values[:] = 0.0  # touch all pages before the measurement
        self._next = 0

    def part(self, nbytes: int) -> "Arena":
        """Return the first `nbytes` bytes of this memory as a separate arena."""
        made = Arena(0, self.place)
        made.values = self.values[: nbytes // 4]
        return made

    def fill(self, values: Array) -> None:
        """Fill the memory with copies of `values`, (n,) float32."""
        values = beside(values, self.values)
        for first in range(0, len(self.values) - len(values) + 1, len(values)):
            self.values[first : first + len(values)] = values
        self._next = 0

    def end(self) -> None:
        """Wait until the device has finished this thread's work."""
        self.place.device.mark().wait()

    def window(self, numel: int) -> Array:
        """Return the next `numel` elements, (numel,) float32."""
        if self._next + numel > len(self.values):
            self._next = 0
        self._next += numel
        return self.values[self._next - numel : self._next]


class ProbeExchanges:
    """All-reduces of any size among the ranks of a communicator."""

    def __init__(self, comm: MPI.Comm, arena: Arena) -> None:
        assert isinstance(comm, MPI.Intracomm)
        self.comm = comm
        self.group = Group(ranks=tuple(range(comm.size)), nodes=(0,) * comm.size)
        self.arena = arena

    def seconds(
        self,
        collective: str,
        codec: Codec,
        numel: int,
        budget: float,
        together: MPI.Intracomm | None = None,
    ) -> float:
        """Return the median s of an all-reduce of `numel` elements from a common start.

        together: all ranks that begin at once, including other groups with their own all-reduce.
        """

        def work() -> None:
            complete(start())
            self.arena.end()

        with self.beginner(collective, codec, numel) as start:
            return median_seconds(together or self.comm, budget, work)

    @contextmanager
    def beginner(
        self, collective: str, codec: Codec, numel: int
    ) -> Iterator[Callable[[], Exchange]]:
        """Yield a function that begins such an all-reduce, prepared if a run would prepare it."""
        schedule = COLLECTIVES[collective](self.group)
        payload = Payload.reducing(schedule, codec, BucketSpec.uniform(numel))
        path, landing = self.arena.place.path, Landing()
        made: list[Prepared] = []

        def opened() -> ReducingEndpoint:
            return ReducingEndpoint(self.arena.window(numel), payload, {}, None)

        for _ in range(max(1, min(TURNS, len(self.arena.values) // numel))):
            found = prepared(schedule, opened(), self.comm, 0, path, landing)
            made += [] if found is None else [found]
        turns = cycle(made)

        def start() -> Exchange:
            if not made:
                return begin(schedule, opened(), self.comm, 0, path)
            chosen = next(turns)
            chosen.start()
            return chosen

        yield start
        for each in made:
            each.free()

    def ring(self, message: int, budget: float, together: MPI.Intracomm | None = None) -> float:
        """Return the median s of a ring whose messages have `message` bytes, without additions."""
        numel = message // 4 * self.comm.size
        return self.seconds("ring", Silent(), numel, budget, together)

    def without_rest(self, message: int) -> float:
        """Return the median s of such a ring right after another one."""
        times = []
        with self.beginner("ring", Silent(), message // 4 * self.comm.size) as start:
            complete(start())
            self.comm.Barrier()
            before = now()
            for _ in range(ROW):
                complete(start())
                self.arena.end()
                times.append(now() - before)
        return agree.largest(float(np.median(np.diff(times))), self.comm)

    def rounds(self, collective: str) -> int:
        """Return the number of consecutive hops in an all-reduce."""
        schedule = COLLECTIVES[collective](self.group)
        return sum(1 for _ in schedule.rounds())
