"""The whole calibration: tight loops, then a workload on the engine to which they are fitted."""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from commsched.calibrate import coding, exercise, links, short_sleeps, stalls, traits, workload
from commsched.calibrate.cell_times import CellTimes, predict
from commsched.calibrate.fit import fit
from commsched.calibrate.processor_costs import ProcessorCosts, interrupts_of_full_port
from commsched.calibrate.short_sleeps import Short
from commsched.calibrate.workload import WorkloadCell
from commsched.exchange.pair import LIBRARY
from commsched.machine import file as machine_file
from commsched.machine.device import Device
from commsched.machine.fabric import HeldOut
from commsched.machine.library import mpi_library
from commsched.machine.model import Machine
from commsched.machine.trust import MEMORY_CHANGE
from commsched.plan.model import Plan
from commsched.run.engine.memory_probe import shared_memory
from commsched.run.engine.probe import Arena, sleeping_barrier
from commsched.run.job import agree
from commsched.run.job.fabric import cores_of_host, fabric
from commsched.run.wire.placement import ON_HOST, Placement
from commsched.simulate.clocks import SOON
from commsched.units import count, nbytes

LINKS, CODING, TRAITS, EXERCISE = 0.3, 0.1, 0.1, 0.45  # shares of the time
STALLS = 0.05  # the rest
MEMORY = 0.02  # share of the time for memory bandwidth
ARENA = 64 * 2**20  # B of memory that exchanges use in turn, more than the caches hold
STARTUP = 1e-4  # s, the least start value of the fit

# Called with the name of the next stage and the finished share of the work.
Progress = Callable[[str, float], None]


def calibrate(
    comm: MPI.Intracomm,
    seconds: float,
    timeout: float,
    progress: Progress = lambda *_: None,
    place: Placement = ON_HOST,
    warn: Callable[[str], None] = lambda _: None,
) -> Machine:
    """Measure the machine of these ranks in about `seconds`.

    All ranks work at once, so that the times include the effects of shared cores. A third of the
    exchanges is held out of the fit; `held_out` has their prediction errors. On rank 0 `warn` is
    called with a sentence if `seconds` are too few.
    """
    machine = _agreed(_loops(comm, seconds, progress, place), comm)
    progress("exchanges of all kinds", LINKS + CODING + TRAITS)
    if comm.size == 1:  # nothing is exchanged
        return replace(machine, measured=_measured_at_the_end(comm, machine, seconds))
    jitter = machine.jitter  # not part of the workload
    cells = _chosen(machine, seconds * EXERCISE, comm)
    if comm.rank == 0 and not workload.tell_bytes(machine, cells):
        largest = nbytes(max(cell.nbytes for cell in cells))
        warn(
            f"{seconds:g} s are too few here: times of buckets above {largest} are"
            " extrapolated; give more with --seconds"
        )
    plan = workload.make_plan(machine, cells)
    agree.check_plan(plan, comm)
    plans = [plan, workload.computing(plan)] if place is ON_HOST else [plan]
    times = exercise.measure(comm, plans, seconds * EXERCISE, timeout, place)
    behind, soon = (
        short_sleeps.measure(comm, machine, timeout, place, apart) for apart in (0.0, SOON)
    )
    progress("fitting", 1.0)
    if comm.rank == 0:
        machine = _fitted(plans, cells, times, (behind, soon), lambda: progress("fitting", 1.0))
    sleeping_barrier(comm)
    machine = replace(
        machine,
        measured=_measured_at_the_end(comm, machine, seconds),
        jitter=jitter,
        stalls=stalls.measure(comm, machine, seconds * STALLS),
        handover=times[0].handover,
        handover_computing=max(times[-1].handover - times[0].handover, 0.0),
        coding_jitter=times[0].jitter,
    )
    return _agreed(machine, comm)


def _measured_at_the_end(comm: MPI.Intracomm, machine: Machine, seconds: float) -> dict[str, float]:
    """Return further measured numbers, with the change of the memory's speed since the start."""
    measured = dict(machine.measured)
    if machine.shared_memory:
        again = shared_memory(comm, seconds * MEMORY)
        measured[MEMORY_CHANGE] = again[-1][1] / machine.shared_memory[-1][1]
    return measured


def _agreed(machine: Machine, comm: MPI.Intracomm) -> Machine:
    """Return rank 0's machine on all ranks."""
    data = agree.broadcast_data(machine_file.to_data(machine), comm)
    return machine_file.from_data(data, "rank 0")


def _chosen(machine: Machine, seconds: float, comm: MPI.Intracomm) -> list[WorkloadCell]:
    """Return the cells that rank 0 chooses on all ranks: pricing them keeps a core busy."""
    chosen = None if comm.rank else workload.choose(machine, seconds)
    return [WorkloadCell(*cell) for cell in agree.broadcast_data(chosen, comm)]


def _loops(comm: MPI.Intracomm, seconds: float, progress: Progress, place: Placement) -> Machine:
    """Measure links, codecs and traits by tight loops."""
    here = fabric(comm)
    group = agree.group_of(comm)
    progress("links", 0.0)
    room = max(ARENA, coding.WINDOWS * 4 * coding.large(place))
    arena = Arena(max(room, links.SIZES[-1] * comm.size), place)
    coded = arena.part(room)  # does not grow with the ranks
    share = seconds * CODING / (7 * len(coding.measured()) + 2) / coding.PASSES
    passes: list[Device] = []
    cores = cores_of_host(comm)
    ranks_per_core = max(1.0, max(map(len, group.members)) / cores)

    def code(others: float) -> None:
        done = others + len(passes) / coding.PASSES * CODING

        def budget() -> float:
            progress("codecs", done)  # each time: a GPU compiles the first use of each codec
            return share

        passes.append(coding.device(comm, coded, budget, ranks_per_core))

    code(0.0)
    progress("links", CODING / coding.PASSES)
    found = links.measure(comm, group, arena, seconds * LINKS)
    code(LINKS)
    progress("jitter, progress, incast", LINKS + CODING)
    source = f"measured {time.strftime('%Y-%m-%d')} on {', '.join(here.hosts[:4])}"
    nic = found.nic
    machine = Machine(
        name="calibrated",
        node_of_rank=group.nodes,
        inside=replace(found.inside, source=source),
        between=replace(found.between, source=source),
        nic=None if nic is None else replace(nic, source=source),
        overrides={n: replace(link, source=source) for n, link in found.overrides.items()},
        startup=max(found.startup, STARTUP),
        wakeup=STARTUP,
        interpreter=STARTUP,
        burst=found.burst,
        cores=cores,
        shared_memory=shared_memory(comm, seconds * MEMORY) if place is ON_HOST else (),
        device=passes[-1],
        fabric=here,
        library="nccl" if place.by_nccl else mpi_library(here.mpi),
        source=f"{source}, {count(comm.size, 'rank')}, {here.mpi}",
    )
    machine = traits.added(comm, machine, arena, seconds * TRAITS)
    code(LINKS + TRAITS)
    return replace(machine, device=replace(coding.typical(passes), source=source))


def _fitted(
    plans: list[Plan],
    cells: list[WorkloadCell],
    times: list[CellTimes],
    short: tuple[Short, Short],
    beat: Callable[[], None],
) -> Machine:
    """Return the machine whose simulation is nearest to the measured times."""
    held = workload.held_out(cells)
    machine = replace(plans[0].machine, native=_native(cells, times[0], ~held))
    machine = fit(replace(plans[0], machine=machine), times[0], ~held, beat)
    if machine.nodes > 1 and plans[-1].net.occupies_cores:  # shared memory has no packets
        interrupts = interrupts_of_full_port(replace(plans[-1], machine=machine), times[-1])
        machine = replace(machine, between=replace(machine.between, interrupts=interrupts))
    machine = short_sleeps.added(machine, *short, times[0].handover)
    costs = ProcessorCosts(replace(plans[-1], machine=machine), times[-1], times[0])
    machine, _ = costs.fitted(machine)
    if plans[-1].net.occupies_cores:
        machine = fit(replace(plans[-1], machine=machine), times[-1], ~held, beat, costs)
    found = []
    for plan, real in zip(plans, times, strict=True):
        predicted = predict(replace(plan, machine=machine))
        beside = ", computing" if plan.net.occupies_cores else ""
        found += [
            HeldOut(
                name=f"{cell.name}{beside}",
                predicted=p,
                measured=m,
                computing=plan.net.occupies_cores,
            )
            for cell, p, m, out in zip(cells, predicted.whole, real.whole, held, strict=True)
            if out
        ]
    return replace(machine, held_out=(*machine.held_out, *found))


def _native(
    cells: list[WorkloadCell], times: CellTimes, fitted: npt.NDArray[np.bool_]
) -> tuple[tuple[float, float], ...]:
    """Return (bytes, seconds) of the library's own all-reduce."""
    found = [
        (float(cell.nbytes), float(seconds))
        for cell, seconds, counts in zip(cells, times.whole, fitted, strict=True)
        if counts and cell.method == LIBRARY
    ]
    sizes, seconds = np.array(sorted(found)).T
    return tuple(zip(sizes.tolist(), rising(seconds).tolist(), strict=True))


def rising(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the nearest non-decreasing times (n,), by least squares of their logarithms.

    A longer all-reduce cannot take less time: decreasing neighbours get their mean.
    Source: Ayer et al., "An empirical distribution function for sampling with incomplete
    information", 1955 (pooling adjacent violators).
    """
    pools: list[tuple[float, int]] = []  # mean and number of its times
    for mean in np.log(seconds).tolist():
        count = 1
        while pools and pools[-1][0] > mean:
            before, many = pools.pop()
            mean = (mean * count + before * many) / (count + many)
            count += many
        pools.append((mean, count))
    means, counts = zip(*pools, strict=True)
    found: npt.NDArray[np.float64] = np.exp(np.repeat(means, counts))
    return found
