"""The phase of a method to which an operation belongs, and the decision on that phase."""

from collections.abc import Mapping
from functools import lru_cache

from commsched.exchange.broadcast import BROADCAST
from commsched.exchange.method import Choice, Phase, resolved
from commsched.exchange.registry import method_at, phases_of
from commsched.plan.model import Plan
from commsched.program.model import Kind, Op
from commsched.timeline.names import decision_key


def phase_of(plan: Plan, op: Op, step: int | None = None) -> Phase | Choice:
    """Return the phase of an operation, in `step` if one is named; cached objects."""
    if op.root is not None:
        return _broadcast(plan, op.launch, op.root)
    name = plan.launches[op.launch].method
    now = name if step is None else method_at(name, step).name
    return phases_of(plan, op.launch, *((now,) if now != name else ()))[op.phase]


def operation_name(launch: str, phase: str, kind: Kind) -> str:
    """Name an operation of a launch; `phase` is "" if the method has one phase."""
    return f"{launch}/{phase}/{kind}" if phase else f"{launch}/{kind}"


def decided_phase(plan: Plan, op: Op, step: int, decisions: Mapping[str, float]) -> Phase:
    """Return an operation's phase in a step; a choice takes the recorded or expected decision."""
    phase = phase_of(plan, op, step)
    decide = operation_name(plan.launches[op.launch].name, phase.name, Kind.DECIDE)
    return resolved(phase, decisions.get(decision_key(step, decide)))


@lru_cache(maxsize=1024)
def _broadcast(plan: Plan, index: int, root: int) -> Phase:
    launch = plan.launches[index]
    return BROADCAST.phase(plan.spec(launch), plan.group(launch), root)
