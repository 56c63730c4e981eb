"""Changes over a training in a plan of `sync`: later methods, and broadcasts of parameters."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from commsched.errors import CommschedError
from commsched.exchange.broadcast import BROADCAST
from commsched.exchange.registry import find_method
from commsched.plan.model import Launch, Plan
from commsched.planner.averages import chunks
from commsched.program.registry import STRATEGIES
from commsched.strategies.sync import REFRESH


def scheduled(plan: Plan, later: Mapping[int, str], refresh: int) -> Plan:
    """Return the plan with its buckets exchanged by method `later[step]` from each such step on.

    Every `refresh` steps all ranks get the parameters of rank 0; 0: never. The planner's prediction
    is left out, because it holds for the first steps only.
    """
    if not later and not refresh:
        return plan
    if not STRATEGIES[plan.strategy].changes:
        raise CommschedError(
            "--later and --refresh are for strategy 'sync', whose ranks all hold the same"
            f" parameters, got {plan.strategy!r}"
        )
    found, since = [*plan.launches], max((launch.since for launch in plan.launches), default=0)
    for number, (step, name) in enumerate(sorted(later.items()), 1):
        if step <= since:
            raise CommschedError(f"--later {step}={name}: the step must be at least {since + 1}")
        method = find_method(name)
        for launch in (launch for launch in plan.launches if launch.since == since):
            method.phases(plan.spec(launch), plan.group(launch))  # an illegal pair raises an error
            label = f"{launch.name}.{number}"
            found.append(replace(launch, name=label, method=method.name, since=step, reason=None))
    if refresh:
        found += _broadcasts(plan, refresh)
    return _added(plan, found)


def _added(plan: Plan, launches: Iterable[Launch]) -> Plan:
    made = replace(plan, launches=tuple(launches), iteration=0.0, bound=0.0, alternatives=())
    STRATEGIES[plan.strategy].lower(made, 0, {})
    made.check()
    return made


def begun(plan: Plan, step: int, method: str) -> Plan:
    """Return the plan with its buckets exchanged by another method before `step`.

    PyTorch's PowerSGD hook sums its first steps dense (`start_powerSGD_iter`), and so does 1-bit
    Adam (Tang et al., ICML 2021): early gradients change too fast for error feedback.
    """
    if step < 1:
        raise CommschedError(f"--first {step}={method}: the number of steps must be at least 1")
    if not STRATEGIES[plan.strategy].changes:
        raise CommschedError(f"--first is for strategy 'sync', got {plan.strategy!r}")
    first = [
        replace(launch, name=f"{launch.name}.0", method=find_method(method).name, reason=None)
        for launch in plan.launches
    ]
    return _added(plan, (*first, *(replace(launch, since=step) for launch in plan.launches)))


def _broadcasts(plan: Plan, every: int) -> list[Launch]:
    """Make the launches that give all ranks the parameters of rank 0."""
    if every < 1:
        raise CommschedError(f"--refresh must be at least 0 steps, got {every}")
    priority = max((launch.priority for launch in plan.launches), default=-1) + 1
    stream = "between" if plan.machine.nodes > 1 else "inside"
    return [
        Launch(
            name=f"p{number}",
            pieces=pieces,
            after=plan.net.layers[0].name,
            method=BROADCAST.name,
            stream=stream,
            payload="parameter",
            priority=priority + number,
            purpose=REFRESH,
            every=every,
        )
        for number, pieces in enumerate(chunks(plan.net))
    ]
