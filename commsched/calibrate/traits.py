"""The measurement of jitter, sharing of cores, overlap of exchanges with compute, and incast."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from mpi4py import MPI

from commsched.arrays import Array
from commsched.coding.registry import CODECS
from commsched.exchange.endpoint import GatheringEndpoint
from commsched.machine.model import Machine
from commsched.run.engine.probe import Arena, ProbeExchanges, median_seconds, sleeping_barrier
from commsched.run.engine.transfer import begin
from commsched.run.engine.wait_for_messages import complete
from commsched.run.job import agree, clock
from commsched.run.job.clock import now
from commsched.run.wire.path import Exchange
from commsched.schedule.rounds import Goal, Round, Schedule

WORK = 2e-3  # s of processor work whose jitter is measured
TIMES = 20
IN_CACHE = 2**14  # elements of processor work
LARGE_THERE = 2**22  # elements of work on a device: less would measure the launch only
UNDER = 60e-3  # s of the exchange that compute should hide
INCAST = 131072  # B that each node sends to one


def added(comm: MPI.Intracomm, machine: Machine, arena: Arena, budget: float) -> Machine:
    """Add jitter to the machine; `measured` gets numbers that no model uses."""
    sigma = jitter(comm)
    shares = progress(comm, arena, budget / 2)
    found = {f"overlap, {mode}": share for mode, share in shares.items()}
    found["clock uncertainty (us)"] = clocks(comm) * 1e6
    fan = incast(comm, machine, arena, budget / 2)
    if fan is not None:
        found["incast of all nodes over one sender"] = fan
    return replace(machine, jitter=sigma, measured=found)


def jitter(comm: MPI.Intracomm) -> float:
    """Return the sigma of the logarithm of the time of equal work, as the median of the ranks.

    Ranks measure one after another while the others sleep, because contention is not jitter.
    """
    values = np.ones(IN_CACHE, np.float32)
    found = 0.0
    for rank in range(comm.size):
        if rank == comm.rank:
            loops, times = _loops(values), []
            for _ in range(TIMES):
                start = now()
                _work(values, loops)
                times.append(now() - start)
            low, high = np.quantile(np.log(times), (0.16, 0.84))  # of a normal law: +- sigma
            found = float(high - low) / 2
        sleeping_barrier(comm)
    return float(np.median(agree.gather_numbers(found, comm)))


def _loops(values: np.ndarray) -> int:
    start = now()
    _work(values, 100)
    return max(1, int(100 * WORK / max(now() - start, 1e-6)))


def _work(values: Array, loops: int) -> None:
    for _ in range(loops):
        np.sqrt(values, out=values)


def progress(comm: MPI.Intracomm, arena: Arena, budget: float) -> dict[str, float]:
    """Return the share of an exchange that compute hides, for three ways to make progress.

    "thread": a thread polls, as in `run`, while the rank waits for an accelerator; "thread, busy
    cores": it polls while the rank's processor computes; "none": no poll until the compute is over.
    """
    exchanges = ProbeExchanges(comm, arena)
    numel = _hidden_size(exchanges)
    alone = exchanges.seconds("ring", CODECS["dense"], numel, budget / 4)
    found = {}
    with exchanges.beginner("ring", CODECS["dense"], numel) as start:
        modes: dict[str, Callable[[], None]] = {
            "thread": lambda: _threaded(start(), arena, lambda: time.sleep(alone)),
            "thread, busy cores": lambda: _threaded(start(), arena, lambda: _spin(alone)),
            "none": lambda: _unpolled(start(), alone),
        }
        for name, work in modes.items():
            both = median_seconds(comm, budget / 4, work)
            found[name] = float(np.clip((2 * alone - both) / alone, 0.0, 1.0))
    return found


def _hidden_size(exchanges: ProbeExchanges) -> int:
    """Return the number of elements whose exchange lasts about UNDER."""
    numel = 2**16
    while numel < len(exchanges.arena.values) // 4:
        if exchanges.seconds("ring", CODECS["dense"], numel, 0.0) > UNDER / 2:
            break
        numel *= 2
    return numel


def _threaded(exchange: Exchange, arena: Arena, compute: Callable[[], None]) -> None:
    def work() -> None:
        arena.place.device.use("codec")
        complete(exchange)
        arena.end()

    thread = threading.Thread(target=work)
    thread.start()
    compute()
    thread.join()


def _unpolled(exchange: Exchange, seconds: float) -> None:
    time.sleep(seconds)
    complete(exchange)


def _spin(seconds: float) -> None:
    """Compute with NumPy, which releases the interpreter's lock, for `seconds`."""
    values, end = np.ones(IN_CACHE, np.float32), now() + seconds
    while now() < end:
        _work(values, 10)


def incast(comm: MPI.Intracomm, machine: Machine, arena: Arena, budget: float) -> float | None:
    """Return the time of all nodes sending to one node over the time of a single sender.

    None with fewer than three nodes. A port that serves one message at a time gives the number of
    senders.
    """
    group = machine.everyone
    first = [members[0] for members in group.members]
    if len(first) < 3:
        return None
    ranks = [r for r in first if group.nodes[r] not in machine.overrides]
    part = comm.Split(0 if comm.rank in ranks else MPI.UNDEFINED, comm.rank)
    assert isinstance(part, MPI.Intracomm)
    times = [0.0, 0.0]
    if comm.rank in ranks:
        times = [_converge(part, n, arena, budget / 2) for n in (1, part.size - 1)]
    sleeping_barrier(comm)
    one, all_ = agree.broadcast_numbers(ranks[0], times, comm)
    return all_ / one


def _converge(comm: MPI.Intracomm, senders: int, arena: Arena, budget: float) -> float:
    """Return the median s in which `senders` send INCAST bytes each to the first rank."""

    def rounds() -> Iterator[Round]:
        for src in range(1, senders + 1):
            block = np.array([src])
            yield Round(block, np.array([0]), block, block + 1, add=False, merged=1, waits=0)

    schedule = Schedule(
        name="incast", ranks=comm.size, blocks=comm.size, goal=Goal.ALL_GATHER, rounds=rounds
    )

    def work() -> None:
        held = GatheringEndpoint({comm.rank: arena.window(INCAST // 4)}, [])
        complete(begin(schedule, held, comm, 0, arena.place.path))
        comm.Barrier()  # a send may complete before it arrives

    return median_seconds(comm, budget, work)


def clocks(comm: MPI.Intracomm) -> float:
    """Return the largest clock uncertainty between ranks, s."""
    return agree.largest(clock.align(comm).uncertainty, comm)
