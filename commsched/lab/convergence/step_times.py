"""Step times of the convergence table's cases on a testbed, predicted and measured."""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from commsched.cost.price import price
from commsched.cost.shared_ports import alongside
from commsched.errors import CommschedError
from commsched.exchange.registry import find_method
from commsched.lab.convergence import table as convergence
from commsched.lab.convergence.cases import RATIOS, Case, cases, parts_of, plan_of
from commsched.lab.convergence.table import ConvergenceTable, Moved, StepTimes
from commsched.lab.convergence.tables import TABLES
from commsched.lab.convergence.trainings import ConvergenceRequest, Say, chosen, kept, path_of
from commsched.lab.validate.fabrics import measured_path, plan_path
from commsched.machine import file as machine_file
from commsched.machine.model import Machine
from commsched.plan.model import Plan
from commsched.program.registry import STRATEGIES
from commsched.program.stages import trunk_of
from commsched.simulate.engine import simulate
from commsched.timeline import measure
from commsched.timeline.model import Timeline

# Runs a plan for a number of steps; the path is the stem of its files' names.
Execute = Callable[[Plan, Path, int], Timeline]


@dataclass(frozen=True, kw_only=True)
class Where:
    """A running, calibrated testbed."""

    machine: Machine
    execute: Execute
    jitter: float  # of the emulated compute
    name: str  # such as "2 hosts x 2 lanes, 200mbit"


def calibrated(path: Path, testbed: str, calibrate: Callable[[], None]) -> Machine:
    """Read a testbed's machine file; calibrate if the file is missing or of another testbed."""
    if path.exists() and (known := machine_file.read(path)).name == testbed:
        return known
    calibrate()
    machine = replace(machine_file.read(path), name=testbed)
    machine_file.write(path, machine)
    return machine


def timed(wanted: ConvergenceRequest, where: Where, folder: Path, say: Say) -> ConvergenceTable:
    """Time all trained cases without step times; write the table after each case."""
    begun, table = time.monotonic(), kept(wanted, folder)
    for there in (times for one in table.cases for times in one.times):
        if (there.testbed, there.jitter) != (where.name, where.jitter):
            raise CommschedError(
                f"{folder} has times of {there.testbed} with jitter {there.jitter:g}: name another"
                " folder for this testbed"
            )
    pairs = [(case, ratio) for case in chosen(wanted) for ratio in case.ratios]
    for number, (case, ratio) in enumerate(pairs):
        old = table.case(case.name)
        if old is None or any(times.ratio == ratio for times in old.times):
            continue
        if time.monotonic() - begun > wanted.time_limit:
            say(f"{len(pairs) - number} times are left; the same command goes on")
            break
        found = _times(case, ratio, wanted, where, folder / wanted.table)
        case_with = msgspec.structs.replace(old, times=(*old.times, found))
        table = table.with_case(case_with)
        convergence.write(path_of(wanted, folder), table)
        say(
            f"[{number + 1}/{len(pairs)}, {time.monotonic() - begun:.0f} s] {case.name}, compute as"
            f" {ratio}: {found.predicted * 1e3:.4g} ms predicted, {found.measured * 1e3:.4g} ms"
            " measured"
        )
    return table


def _times(
    case: Case, ratio: str, wanted: ConvergenceRequest, where: Where, place: Path
) -> StepTimes:
    """Predict and run the steps of a case, or its whole training if epochs differ."""
    net = TABLES[wanted.table]
    plan, compute = _plan(case, ratio, wanted, where)
    steps = net.steps if "epochs" in plan.params else net.timed
    predicted = simulate(plan, steps).timeline()
    stem = place / "timed"
    found = where.execute(plan, stem, steps)
    seconds = measure.iteration_seconds(found)[measure.settled(found)]
    low, high = np.quantile(seconds, (0.1, 0.9)).tolist()
    for each in (plan_path(stem), measured_path(stem)):
        each.unlink(missing_ok=True)
    memory = STRATEGIES[plan.strategy].memory(plan)
    return StepTimes(
        ratio=ratio,
        value=RATIOS[ratio].value,
        scale=net.scale,
        compute=compute,
        jitter=where.jitter,
        testbed=where.name,
        plan=plan.hash,
        steps=steps - 1,
        predicted=elapsed(predicted),
        measured=elapsed(found),
        low=low,
        high=high,
        sent_bytes=float(found.nbytes.sum()) / (steps * found.ranks),
        state_bytes=memory.total - memory.activations - memory.packets,
        launches=tuple(_moved(plan, predicted, found)),
    )


def _moved(plan: Plan, predicted: Timeline, measured: Timeline) -> Iterator[Moved]:
    """Return the predicted and measured seconds of each launch of a plan."""
    known = STRATEGIES[plan.strategy].operations(plan)
    for index, launch in enumerate(plan.launches):
        spec = plan.spec(launch)
        names = {name for name, op in known.items() if op.launch == index}
        yield Moved(
            launch=launch.name,
            tensors=tuple(dict.fromkeys(piece.tensor for piece in launch.pieces)),
            density=float(spec.nonzeros(np.array([0]), np.array([spec.numel]))[0]) / spec.numel,
            predicted=moving(predicted, names),
            measured=moving(measured, names),
        )


def elapsed(t: Timeline) -> float:
    """Return the mean seconds of a step, from the first rank's start of step 1 to the end.

    The mean over each step's slowest rank would be too long: ranks that do not wait for each
    other in every step overlap their slow steps.
    """
    starts = measure.step_starts(t)[:, 1]
    return float(t.end.max() - np.nanmin(starts)) / (len(measure.steps(t)) - 1)


def moving(t: Timeline, operations: Collection[str]) -> float:
    """Return the seconds of coding and exchange operations per step and participating rank.

    The first step, and the time until an exchange's last rank arrives, are left out.
    """
    names = [i for i, name in enumerate(t.names) if name in operations]
    rows = np.isin(t.name, names) & ~measure.computes(t) & (t.step > 0)
    ranks, steps = len(np.unique(t.rank[rows])), len(measure.steps(t)) - 1
    spent = t.end[rows] - t.start[rows] - t.waited[rows]
    return float(spent.sum()) / (ranks * steps) if ranks else 0.0


def _plan(case: Case, ratio: str, wanted: ConvergenceRequest, where: Where) -> tuple[Plan, float]:
    """Return the case's plan, enlarged for the testbed, and its compute, s per rank and step.

    Compute lasts RATIOS[ratio].value times the exchanges of the ratio's reference case, so all
    cases of a table compute equally long; auxiliary heads come on top.
    """
    net, on = TABLES[wanted.table], replace(where.machine, jitter=where.jitter)
    known = {each.name: each for each in cases(wanted.table)}
    other = plan_of(known[RATIOS[ratio].of], net, wanted.hosts, wanted.lanes, net.scale)
    compute = RATIOS[ratio].value * _exchanges(replace(other, machine=on))
    plan = plan_of(case, net, wanted.hosts, wanted.lanes, net.scale)
    # A net's batch is one rank's part; in a pipeline, one microbatch.
    planned = sum(sum(plan.net.seconds(x, on.device)) for x in trunk_of(plan.net))
    pieces = parts_of(case, wanted.ranks)
    graph = plan.net.scaled(1.0, compute * wanted.ranks / (planned * pieces))
    return replace(plan, net=graph, machine=on), compute


def _exchanges(plan: Plan) -> float:
    """Return the seconds that the exchanges of a step take alone, on the busiest rank."""
    found = np.zeros(plan.machine.size)
    for launch in plan.launches:
        group = plan.group(launch)
        on = alongside(plan.machine, group)
        spent = price(find_method(launch.method), plan.spec(launch), on, group).exchange
        found[np.array(group.ranks)] += spent
    return float(found.max())
