"""Predicts and measures the steps of the convergence table's cases on a testbed."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from commsched.bench.cases import RATIOS, TABLES, Case, cases, plan_of
from commsched.bench.convergence import Say, Wanted, chosen, kept, path_of
from commsched.cost.price import price
from commsched.machine import Machine
from commsched.methods import find_method
from commsched.plan import Plan
from commsched.plan import file as plan_file
from commsched.simulate import simulate
from commsched.timeline import Timeline, convergence, measure
from commsched.timeline.convergence import Table, Times

SCALE = 10.0  # of elements: exchanges of the small nets themselves would be all latency
STEPS = 41  # that are timed where a strategy has no epochs; the first one is dropped

# Runs a plan for so many steps; the plan goes into the first file, the timeline into the second.
Execute = Callable[[Plan, Path, Path, int], Timeline]


@dataclass(frozen=True, kw_only=True)
class Where:
    """A testbed that is up and was calibrated."""

    machine: Machine
    execute: Execute
    jitter: float  # of the emulated compute
    name: str  # such as "2 hosts x 2 lanes, 200mbit"


def timed(wanted: Wanted, where: Where, folder: Path, say: Say) -> Table:
    """Time all cases that were trained and not yet timed; the table is written after each."""
    begun, table = time.monotonic(), kept(wanted, folder)
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


def _times(case: Case, ratio: str, wanted: Wanted, where: Where, place: Path) -> Times:
    """Predict a case's steps, then run them: whole trainings where epochs differ."""
    net = TABLES[wanted.table]
    plan = _plan(case, ratio, wanted, where)
    steps = net.steps if "epochs" in plan.params else STEPS
    predicted = simulate(plan, steps).iterations[1:]
    path, output = place / "timed.plan.json", place / "timed.json"
    plan_file.write(path, plan)
    found = where.execute(plan, path, output, steps)
    seconds = measure.iteration_seconds(found)[1:]
    low, high = np.quantile(seconds, (0.1, 0.9)).tolist()
    for each in (path, output):
        each.unlink(missing_ok=True)
    return Times(
        ratio=ratio,
        value=RATIOS[ratio].value,
        scale=SCALE,
        compute=sum(sum(plan.graph.seconds(x, plan.machine.device)) for x in plan.graph.layers),
        jitter=where.jitter,
        testbed=where.name,
        plan=plan.hash,
        steps=steps - 1,
        predicted=float(np.mean(predicted)),
        measured=float(np.mean(seconds)),
        low=low,
        high=high,
        sent_bytes=float(found.nbytes.sum()) / (steps * found.ranks),
    )


def _plan(case: Case, ratio: str, wanted: Wanted, where: Where) -> Plan:
    """The case's plan, larger, on the testbed; compute lasts so many times as dense exchanges."""
    net, on = TABLES[wanted.table], replace(where.machine, jitter=where.jitter)
    dense = plan_of(next(cases(wanted.table)), net, wanted.hosts, wanted.lanes, SCALE)
    exchanges = sum(
        price(find_method(launch.method), dense.spec(launch), on, on.everyone).exchange
        for launch in dense.launches
    )
    plan = plan_of(case, net, wanted.hosts, wanted.lanes, SCALE)
    planned = sum(sum(plan.graph.seconds(layer, on.device)) for layer in plan.graph.layers)
    graph = plan.graph.scaled(1.0, RATIOS[ratio].value * exchanges / planned)
    return plan_file.frozen(replace(plan, graph=graph, machine=on))
