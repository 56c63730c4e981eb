"""The decisions and changes of plan that a simulation takes from a measured run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from commsched.errors import CommschedError
from commsched.plan.model import Plan
from commsched.timeline.header import Fallback, Switch
from commsched.timeline.model import Timeline


class Replay(NamedTuple):
    """The decisions of a run's ranks, and its changes of plan."""

    decisions: Mapping[str, float]
    changes: Mapping[int, Plan]  # first step -> the plan from there on


def replay(plan: Plan, measured: Timeline, steps: int, where: str) -> Replay:
    """Return a plan's decisions in some steps of its own measured run; `where` names its file."""
    if measured.plan_hash != plan.hash:
        raise CommschedError(
            f"{where}: a run of plan {measured.plan_hash[:12]}, not of {plan.hash[:12]}; replay a"
            " run of the plan that is simulated"
        )
    run = measured.run
    changes: dict[int, Plan] = {}
    for switch in sorted(run.switches or (), key=lambda switch: switch.step):
        if switch.step < steps:
            falls = [fall for fall in run.fallbacks or () if fall.since == switch.step]
            plan = changes[switch.step] = _followed(plan, switch, falls, where)
    return Replay(measured.decisions, changes)


def _followed(plan: Plan, switch: Switch, falls: Sequence[Fallback], where: str) -> Plan:
    """Return the plan after a switch: launches beyond the error budget become dense."""
    dense = {
        launch: method
        for fall in falls
        for launch, method in zip(fall.launches, fall.dense, strict=False)
    }
    launches = tuple(
        replace(launch, method=dense[launch.name], reason=None) if launch.name in dense else launch
        for launch in plan.launches
    )
    made = replace(plan, launches=launches)
    if made.hash != switch.plan:
        raise CommschedError(
            f"{where}: from step {switch.step} on the run followed plan {switch.plan[:12]}, which"
            f" the timeline does not hold ({switch.why}); nearest: --steps {switch.step}"
        )
    return made
