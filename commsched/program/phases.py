"""The phase of its method that an operation belongs to."""

from functools import lru_cache

from commsched.exchange.broadcast import BROADCAST
from commsched.exchange.method import Choice, Phase
from commsched.exchange.registry import method_at, phases_of
from commsched.plan.model import Plan
from commsched.program.model import Op


def phase_of(plan: Plan, op: Op, step: int | None = None) -> Phase | Choice:
    """The phase of an operation of a launch, or as it is in a step; the same object likewise."""
    if op.root >= 0:
        return _broadcast(plan, op.launch, op.root)
    name = plan.launches[op.launch].method
    now = name if step is None else method_at(name, step).name
    return phases_of(plan, op.launch, *((now,) if now != name else ()))[op.phase]


@lru_cache(maxsize=1024)
def _broadcast(plan: Plan, index: int, root: int) -> Phase:
    launch = plan.launches[index]
    return BROADCAST.phase(plan.spec(launch), plan.group(launch), root)
