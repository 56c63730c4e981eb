"""Measurement in turns of the planner's choice and other systems' plans of a net on a bed."""

from dataclasses import replace
from statistics import median
from typing import NamedTuple

from commsched.errors import CommschedError
from commsched.exchange.registry import find_method
from commsched.lab.validate.cells import ValidationCell
from commsched.lab.validate.session import BedSession
from commsched.lab.validate.table import MeasuredPlan
from commsched.machine.model import Machine
from commsched.net.graph import Net
from commsched.plan.model import Plan
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.planner.search.problem import BASELINES, Problem
from commsched.planner.search.timing import iteration
from commsched.simulate.exchange_costs import Known
from commsched.timeline import measure

FP16, TOPK = "fp16", "topk:0.01"
# The first planner is ours with every allowed loss.
OURS = {"best": (FP16, TOPK), "best lossless": (), "best fp16": (FP16,), "best top-k": (TOPK,)}
OTHERS = ("ddp-25mb", "horovod-64mb", "bytescheduler", "all-topk", "hipress", "espresso")
MORE = ("all-coo", "per-tensor")  # used if plans of the others are equal
PLANS = 8
TURNS = 2  # runs of each plan: all plans once, then all again
STEPS = 8  # of a run, at the most
PLANNING = 4.0  # s of search for each of our plans
USUAL = 100e6  # B of gradients of a usual net, for which fixed bucket sizes are meant


class PredictedPlan(NamedTuple):
    """A plan of a decision and its simulated iteration."""

    plan: Plan
    names: list[str]  # of the planners that return it
    seconds: float


def plans(net: Net, machine: Machine, planning: float = PLANNING) -> list[PredictedPlan]:
    """Return up to PLANS different plans; the planner's choice is the first."""
    everything = Request(
        net=net, machine=machine, lossy=OURS["best"], scale=net.nbytes / USUAL, time_limit=planning
    )
    found: dict[str, PredictedPlan] = {}
    known: Known = {}

    def add(name: str, plan: Plan) -> None:
        launches = tuple(replace(launch, reason=None) for launch in plan.launches)
        bare = replace(plan, launches=launches, planner="", iteration=0.0, bound=0.0)
        if bare.hash not in found:
            found[bare.hash] = PredictedPlan(bare, [], iteration(bare, known))
        found[bare.hash].names.append(name)

    for name, lossy in OURS.items():
        add(name, make_plan(replace(everything, lossy=lossy)))
    # A wider search may end with a worse plan in equal time.
    found = dict(sorted(found.items(), key=lambda item: item[1].seconds))
    problem = Problem(everything)
    for name in (*OTHERS, *MORE):
        if len(found) < PLANS:
            try:
                add(name, problem.plan(problem.within(BASELINES[name](problem)), name))
            except CommschedError:
                continue  # this system has no plan for the net
    return [*found.values()]


def measured_plans(
    case: ValidationCell, net: Net, machine: Machine, session: BedSession, steps: int
) -> tuple[MeasuredPlan, ...]:
    """Plan a case with all planners and run the plans in turns; the planner's choice is first."""
    session.say(f"{case}: planning")
    made = plans(net, machine)
    measured: list[list[float]] = [[] for _ in made]
    for turn in range(TURNS):
        for i, one in enumerate(made):
            session.say(f"{case}: turn {turn + 1} of {TURNS}, {', '.join(one.names)}")
            timeline, _ = session.measured(one.plan, case, f"{case.stem}-{i}", min(steps, STEPS))
            seconds = measure.iteration_seconds(timeline)[measure.settled(timeline)]
            measured[i].append(median(seconds.tolist()))
    return tuple(
        MeasuredPlan(
            names=tuple(one.names),
            compresses=any(find_method(launch.method).compresses for launch in one.plan.launches),
            predicted=one.seconds,
            measured=tuple(seconds),
        )
        for one, seconds in zip(made, measured, strict=True)
    )
