"""`bench sparse`: methods that sum sparse gradients, given and returned as lists, under mpiexec."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from commsched.arrays import Array, Floats
from commsched.coding.codec import State
from commsched.errors import CommschedError
from commsched.exchange.endpoint import open_endpoint
from commsched.exchange.lockstep import fresh_states
from commsched.exchange.method import Choice, Method, Phase, resolved
from commsched.exchange.registry import find_method
from commsched.kernels.merge import listed
from commsched.lab.bench import sparse_inputs as supports
from commsched.lab.bench.all_reduce import together
from commsched.machine.model import Group
from commsched.net.sparsity import Sparsity
from commsched.run.engine import probe
from commsched.run.engine.script import script
from commsched.run.engine.transfer import begin
from commsched.run.engine.wait_for_messages import complete
from commsched.run.job import agree
from commsched.run.job.clock import now
from commsched.run.job.watchdog import Watchdog
from commsched.terminal import say
from commsched.units import seconds as in_words

NUMEL = 2**23
DENSITIES = (0.001, 0.01, 0.05, 0.2)
METHODS = (
    "node-union",
    "all-gather-direct+coo",  # AGsparse
    "doubling+coo",  # SparCML's SSAR recursive doubling
    "split-all-gather",  # SparCML's SSAR split
    "dsar",  # SparCML's switch to dense
    "omnireduce",
    "sparse-ps",
    "zen",
)
WARM = 2  # warm-up repeats
LEAST = 10  # counted repeats
DENSE = 3  # counted repeats from dense to dense
STREAM = 2**22  # B of a message whose rate is measured


class SparseCell(NamedTuple):
    """One method at one density: medians over the repeats of the slowest rank, s."""

    numel: int
    support: str
    density: float
    method: str
    seconds: float  # from each rank's list to the list of the sum on every rank
    least: float  # s of the fastest repeat
    most: float  # s of the slowest repeat
    dense_seconds: float  # from each rank's (numel,) gradient to the sum in its place
    wire: float  # B that enter the busiest link
    mpi_seconds: float  # MPI_Allreduce of the dense gradient in the same run
    floor: float  # the fewest B that must enter the busiest link
    rate: float  # B/s that enter a link, measured in the same run; 0: ranks share no link
    floor_seconds: float


@dataclass(frozen=True, kw_only=True)
class SparseOptions:
    """What to measure."""

    numel: int = NUMEL
    support: str = "uniform"
    densities: tuple[float, ...] = DENSITIES
    methods: tuple[str, ...] = METHODS
    repeats: int = LEAST
    timeout: float = 60.0
    progress: bool = False  # a line on stderr for each cell


def sparse(options: SparseOptions) -> tuple[list[SparseCell], Group] | None:
    """Return all cells and the ranks' placement, on rank 0; compare every sum with MPI's."""
    _check(options)
    with together(options.timeout) as (comm, dog):
        group = agree.group_of(comm)
        dog.stage("the rate of a link")
        rate = _rate(comm, group)
        cells: list[SparseCell] = []
        mpi = 0.0
        for density in options.densities:
            bench = Bench(comm, dog, group, options, density)
            if not cells:
                mpi = bench.times("MPI's all-reduce", bench.reduce, options.repeats)[0]
            bench.reduce()
            floor = bench.floor()
            for name in options.methods:
                cells.append(bench.cell(name, mpi, floor, rate))
                if options.progress and comm.rank == 0:
                    say(f"{name} at density {density:g}: {in_words(cells[-1].seconds)}")
    return (cells, group) if comm.rank == 0 else None


def _check(options: SparseOptions) -> None:
    if not 1 <= options.numel < 2**31:
        raise CommschedError(f"numel must be from 1 to 2**31 - 1, got {options.numel}")
    if options.repeats < 1:
        raise CommschedError(f"repeats must be at least 1, got {options.repeats}")
    if options.support not in supports.KINDS:
        known = ", ".join(supports.KINDS)
        raise CommschedError(f"no support named {options.support!r}; known: {known}")
    for density in options.densities:
        Sparsity(law="uniform", density=density)
    for name in options.methods:
        if not find_method(name).lossless:
            raise CommschedError(f"method {name!r} is lossy; allowed are those that sum exactly")


class Bench:
    """Repeated sums of this rank's gradient, at one density."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        dog: Watchdog,
        group: Group,
        options: SparseOptions,
        density: float,
    ) -> None:
        self._comm, self._dog, self._group = comm, dog, group
        self._options, self._density = options, density
        self._support = supports.draw(options.support, options.numel, density, comm.rank)
        self._spec, self._index = self._support.spec, self._support.index
        self._values = self._support.values
        self._dense = np.zeros(options.numel, np.float32)
        self._wanted: Array = None
        self._made: dict[str, tuple[Phase | Choice, ...]] = {}

    def reduce(self) -> float:
        """Return the seconds of MPI's all-reduce of the dense gradient."""
        self._fill()
        start = self._begin()
        self._comm.Allreduce(MPI.IN_PLACE, self._dense)
        seconds = now() - start
        self._wanted = listed(self._dense)
        return seconds

    def floor(self) -> float:
        """Return the fewest B that must enter the busiest link.

            4 m + N h(k / N) / 8

        m = elements of the union of ranks behind other links; k of N rows contain them, each row
        whole; h = the binary entropy, for rows that are equally likely. Without a table, every
        element is a row.
        """
        rows, index, of, most = self._support.rows, self._index, self._support.of, 0.0
        for node in sorted(set(_links(self._group))):
            outside = _links(self._group)[self._comm.rank] != node
            elements = self._union(index, self._options.numel, outside)
            hit = elements if of == self._options.numel else self._union(rows, of, outside)
            most = max(most, 4 * elements + of * supports.entropy(hit / of) / 8)
        return most

    def _union(self, index: Array, size: int, mine: bool) -> int:
        """Count the distinct numbers below `size` in the lists of the ranks with `mine`."""
        flags = np.zeros(size, np.uint8)
        if mine:
            flags[index] = 1
        self._comm.Allreduce(MPI.IN_PLACE, flags, op=MPI.MAX)
        return int(np.count_nonzero(flags))

    def cell(self, name: str, mpi: float, floor: float, rate: float) -> SparseCell:
        """Measure one method from lists to lists and from dense to dense."""
        method, options = find_method(name), self._options
        what = f"{name} at density {self._density:g}"
        state = fresh_states([self._dense] * self._comm.size, 3, "bench")[self._comm.rank]
        wire = np.zeros(self._comm.size)
        seconds = self.times(what, partial(self._lists, method, state, wire), options.repeats)
        state.pop("list", None)
        repeats = min(DENSE, options.repeats)
        dense = self.times(what, partial(self._in_place, method, state), repeats)
        into = np.zeros(self._comm.size)
        self._comm.Allreduce(wire / (WARM + options.repeats), into)
        links = np.bincount(_links(self._group), weights=into)
        return SparseCell(
            numel=options.numel,
            support=options.support,
            density=self._density,
            method=name,
            seconds=seconds[0],
            least=seconds[1],
            most=seconds[2],
            dense_seconds=dense[0],
            wire=float(links.max()),
            mpi_seconds=mpi,
            floor=floor,
            rate=rate if np.isfinite(rate) else 0.0,
            floor_seconds=floor / rate,
        )

    def times(
        self, what: str, work: Callable[[], float], repeats: int
    ) -> tuple[float, float, float]:
        """Return median, least and most s of the slowest rank, without the warm-up repeats."""
        found = np.zeros(WARM + repeats)
        for turn in range(len(found)):
            self._dog.stage(f"{what}, repeat {turn}")
            found[turn] = work()
        self._comm.Allreduce(MPI.IN_PLACE, found, op=MPI.MAX)
        counted = found[WARM:]  # the first repeats allocate memory and open connections
        return float(np.median(counted)), float(counted.min()), float(counted.max())

    def _begin(self) -> float:
        probe.sleeping_barrier(self._comm)  # finished ranks sleep and leave the cores to the others
        self._comm.Barrier()
        return now()

    def _fill(self) -> None:
        self._dense.fill(0)
        self._dense[self._index] = self._values

    def _lists(self, method: Method, state: State, wire: Floats) -> float:
        """Sum from list to list, s; methods on dense gradients pay for both conversions."""
        start = self._begin()
        if method.takes_lists(self._group):
            state["list"] = self._index, self._values
            self._run(method, state, wire)
            index, values = state["list"]
        else:
            self._fill()
            state["gradient"] = self._dense
            self._run(method, state, wire)
            index, values = listed(state["result"])
        seconds = now() - start
        self._compare(method, index, values)
        return seconds

    def _in_place(self, method: Method, state: State) -> float:
        """Sum from dense to dense, s."""
        self._fill()
        state["gradient"] = self._dense
        start = self._begin()
        self._run(method, state, np.zeros(self._comm.size))
        seconds = now() - start
        self._compare(method, *listed(state["result"]))
        return seconds

    def _compare(self, method: Method, index: Array, values: Array) -> None:
        wanted = self._wanted
        if not (np.array_equal(index, wanted.index) and np.array_equal(values, wanted.values)):
            raise CommschedError(f"method {method.name!r}: the sum differs from MPI's all-reduce")

    def _run(self, method: Method, state: State, wire: Floats) -> None:
        """Run one launch; add to (p,) `wire` the bytes that this rank sends to other links."""
        for phase in self._phases(method):
            decision = None
            if isinstance(phase, Choice):
                decision = phase.agreed(agree.gather_numbers(phase.vote(state), self._comm))
            self._exchange(resolved(phase, decision), state, wire)

    def _phases(self, method: Method) -> tuple[Phase | Choice, ...]:
        """Return the method's phases, made once as in a run."""
        if method.name not in self._made:
            self._made[method.name] = method.phases(self._spec, self._group)
        return self._made[method.name]

    def _exchange(self, phase: Phase, state: State, wire: Floats) -> None:
        held, sizes = open_endpoint(phase, state), []
        take = held.take

        def counted(first: int, stop: int) -> Array:
            packet = take(first, stop)
            sizes.append(packet.nbytes)
            return packet

        held.take = counted  # type: ignore[method-assign]
        complete(begin(phase.schedule, held, self._comm, 0))
        del held.take  # break a reference cycle that would keep all packets
        if not phase.schedule.library:
            links = _links(self._group)
            sends = script(phase.schedule, self._comm.rank).sends
            for send, nbytes in zip(sends, sizes, strict=True):
                wire[send.peer] += nbytes * (links[send.peer] != links[self._comm.rank])
        phase.give(state, held.result())


def _links(group: Group) -> tuple[int, ...]:
    """Return the link of each rank: its node's, or its own if there is only one node."""
    return group.nodes if len(group.members) > 1 else group.ranks


def _rate(comm: MPI.Intracomm, group: Group) -> float:
    """Return B/s into a link while the first rank of each link sends to that of the next."""
    links = _links(group)
    leaders = [links.index(link) for link in sorted(set(links))]
    out, into, times = np.zeros(STREAM, np.uint8), np.empty(STREAM, np.uint8), np.zeros(8)
    if len(leaders) == 1:
        return float("inf")
    for turn in range(len(times)):
        comm.Barrier()
        start = now()
        if comm.rank in leaders:
            place = leaders.index(comm.rank)
            ahead, behind = leaders[(place + 1) % len(leaders)], leaders[place - 1]
            comm.Sendrecv([out, MPI.BYTE], ahead, 1, [into, MPI.BYTE], behind, 1)
        times[turn] = now() - start
    comm.Allreduce(MPI.IN_PLACE, times, op=MPI.MAX)
    return STREAM / float(np.median(times[WARM:]))


HEADER = (
    "elements", "support", "density", "method", "ms", "least", "most", "dense ms", "wire MB",
    "MPI/ours", "of floor",
)  # fmt: skip
WORDS = {1, 3}  # columns that are not numbers


def rows(cells: list[SparseCell]) -> Iterator[tuple[str, ...]]:
    """Yield the table's lines under HEADER: times in ms, bytes in MB, ratios."""
    for c in cells:
        yield (
            f"{c.numel}",
            c.support,
            f"{c.density:g}",
            c.method,
            f"{c.seconds * 1e3:.1f}",
            f"{c.least * 1e3:.1f}",
            f"{c.most * 1e3:.1f}",
            f"{c.dense_seconds * 1e3:.1f}",
            f"{c.wire / 1e6:.2f}",
            f"{c.mpi_seconds / c.seconds:.2f}",
            f"{c.seconds / c.floor_seconds:.2f}" if c.floor_seconds else "-",
        )
