"""Fit a machine to measured runs of any plans, without measuring it again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from commsched.arrays import Bools, Floats, Ints
from commsched.calibrate.cell_times import CellTimes, kinds_of, simulated, times_of
from commsched.calibrate.fit import COMPUTING, FACTORS, adjusted, log_errors, nearest
from commsched.errors import CommschedError
from commsched.machine.fabric import HeldOut
from commsched.machine.model import Machine
from commsched.plan.model import Plan
from commsched.simulate.engine import simulate
from commsched.timeline.header import RunHeader
from commsched.timeline.measure import iteration_seconds, settled
from commsched.timeline.model import Timeline
from commsched.units import count

STEPS = 11  # simulated steps; a predicted iteration is their median
TOLD = 0.02  # smallest change of a number that is reported
PART = 3  # every third launch is held out of the fit
OFF = float(np.log(3.0))  # the expected error of each factor's logarithm, at least
DOUBTS = {name: max(OFF, doubt) for name, doubt in (FACTORS | COMPUTING).items()} | {
    "bytes between": OFF,
    "coding": OFF,
    "library": OFF,  # the MPI's own all-reduce
}


@dataclass(frozen=True)
class MeasuredRun:
    """A plan and the measured times of its launches' phases."""

    plan: Plan  # has only the launches that were used last, as if from the first step
    step: float  # s of a measured iteration, median
    measured: CellTimes
    phases: Ints  # numbers of the plan's phases that were measured on all ranks

    def predicted(self, machine: Machine) -> CellTimes:
        """Predict the measured phases on a machine, without random parts."""
        even = replace(machine, jitter=0.0, stalls=(), coding_jitter=0.0, handover=0.0)
        return _some(simulated(replace(self.plan, machine=even)), self.phases)

    def predicted_step(self, machine: Machine) -> float:
        """Predict the s of an iteration on a machine, median."""
        return float(np.median(simulate(replace(self.plan, machine=machine), STEPS).iterations))

    @property
    def held_out(self) -> Bools:
        """Tell which launches are held out: (launches,)."""
        found: Bools = np.arange(len(self.plan.launches)) % PART == 1
        return found


def matched(timelines: Mapping[str, Timeline], plans: Sequence[Plan]) -> list[MeasuredRun]:
    """Find the plan of each measured timeline by its hash; `timelines` are named by their files."""
    by_hash = {plan.hash: plan for plan in plans}
    for name, timeline in timelines.items():
        if not isinstance(timeline.header, RunHeader):
            raise CommschedError(f"{name}: a {timeline.kind} timeline; give a measured one")
        if timeline.header.switches:
            raise CommschedError(f"{name}: its plan changed on the way; give a run of one plan")
        if timeline.plan_hash not in by_hash:
            raise CommschedError(
                f"{name}: it is a run of plan {timeline.plan_hash[:12]}; give that plan with --plan"
            )
    return [_run(name, t, by_hash[t.plan_hash]) for name, t in timelines.items()]


def _run(name: str, timeline: Timeline, plan: Plan) -> MeasuredRun:
    """Reduce a timeline to medians of its phases, without their first step, which warms up."""
    plan, begin = _in_use(plan, int(timeline.step.max(initial=0)))
    timeline = timeline.select(timeline.step >= begin)
    cell, kinds = kinds_of(plan)
    row_of = np.array([kinds.get(word, -1) for word in timeline.names])
    row, first = row_of[timeline.name], int(timeline.step.min(initial=2**31 - 1)) + 1
    counted = timeline.select((row >= 0) & (timeline.step >= first))
    steps = int(counted.step.max(initial=first)) + 1 - first
    table = np.full((2, len(kinds), steps, timeline.ranks), np.nan)
    where = row_of[counted.name], counted.step - first, counted.rank
    table[0][where], table[1][where] = counted.start, counted.end
    there = np.isfinite(table[1]).all(axis=-1)  # (kinds * phases, steps)
    seen = there.sum(axis=0)
    table, there = table[:, :, seen == seen.max()], there[:, seen == seen.max()]
    phases = np.flatnonzero(there.all(axis=-1).reshape(3, -1).all(axis=0))
    if not len(phases):
        raise CommschedError(
            f"{name}: no exchange of its plan was made twice by ranks that all encode and decode;"
            " give a longer run of a sync plan"
        )
    step = float(np.nanmedian(iteration_seconds(timeline)[settled(timeline)]))
    return MeasuredRun(plan, step, _some(times_of(cell, table), phases), phases)


def _in_use(plan: Plan, step: int) -> tuple[Plan, int]:
    """Return a plan with only the launches used in a step, and the first step that uses them."""
    begins: dict[str, int] = {}
    for launch in plan.launches:
        if launch.since <= step:
            begins[launch.purpose] = max(launch.since, begins.get(launch.purpose, 0))
    some = [x for x in plan.launches if x.since == begins.get(x.purpose)]
    made = replace(plan, launches=tuple(replace(x, since=0) for x in some))
    return made, max(begins.values(), default=0)


def _some(times: CellTimes, phases: Ints) -> CellTimes:
    return CellTimes(
        cell=times.cell[phases],
        exchange=times.exchange[phases],
        encode=times.encode[phases],
        decode=times.decode[phases],
    )


@dataclass(frozen=True)
class Fitted:
    """A machine after a fit, and the changes that the fit made."""

    machine: Machine
    moved: Mapping[str, float]  # factors by which numbers of the machine were multiplied
    before: tuple[HeldOut, ...]  # exchanges that the fit did not see, on the machine as it was


def fitted(machine: Machine, runs: Sequence[MeasuredRun]) -> Fitted:
    """Fit the numbers of a machine to runs of as many ranks; every third launch is held out."""
    for run in runs:
        if run.plan.machine.node_of_rank != machine.node_of_rank:
            raise CommschedError(
                f"the runs were made by {count(run.plan.machine.size, 'rank')} on"
                f" {count(run.plan.machine.nodes, 'node')}; the machine has {machine.size} on"
                f" {machine.nodes}"
            )

    def errors(tried: Machine) -> Floats:
        each = (log_errors(run.predicted(tried), run.measured, ~run.held_out) for run in runs)
        return np.concatenate(list(each))

    factors = nearest(machine, DOUBTS, errors)
    found = adjusted(machine, factors)
    return Fitted(
        machine=replace(found, held_out=tuple(_held_out(found, runs))),
        moved={name: by for name, by in factors.items() if abs(by - 1.0) > TOLD},
        before=tuple(_held_out(machine, runs)),
    )


def _held_out(machine: Machine, runs: Sequence[MeasuredRun]) -> list[HeldOut]:
    return [
        HeldOut(
            name=f"{launch.name} by {launch.method}",
            predicted=float(predicted),
            measured=float(measured),
            computing=run.plan.net.occupies_cores,
        )
        for run in runs
        for launch, predicted, measured, out in zip(
            run.plan.launches,
            _whole(run, run.predicted(machine)),
            _whole(run, run.measured),
            run.held_out,
            strict=True,
        )
        if out and measured and predicted
    ]


def _whole(run: MeasuredRun, times: CellTimes) -> Floats:
    """Return the s of each launch's exchanges, (launches,); 0 where none was measured."""
    found = np.zeros(len(run.plan.launches))
    np.add.at(found, times.cell, times.exchange)
    return found
