"""Make the plan of a request: check it, ask the planner or the strategy's frame, check the plan."""

from dataclasses import replace

from commsched.errors import CommschedError
from commsched.exchange.registry import find_method
from commsched.plan.model import Plan
from commsched.planner import validate_request
from commsched.planner.limits import error_budget
from commsched.planner.limits.memory import fits, fitting, framed, refusal
from commsched.planner.registry import DEFAULT, FRAMES, PLANNERS
from commsched.planner.request import Request
from commsched.program.registry import STRATEGIES


def make_plan(request: Request, planner: str = DEFAULT) -> Plan:
    """Return the plan of a request in the form in which a plan file holds it."""
    request = checked(request, planner)
    if request.strategy in FRAMES:
        if request.max_error is not None:
            raise CommschedError(
                f"--max-error is for strategy 'sync'; strategy {request.strategy!r} plans without"
                " it"
            )
        frame = FRAMES[request.strategy]
        plan = framed(request, lambda wanted: frame(wanted, PLANNERS[planner]))
    elif request.memory is not None and planner == DEFAULT:
        plan = fitting(request, PLANNERS[planner])
    else:
        plan = PLANNERS[planner](request)
    return accepted(request, plan)


def checked(request: Request, planner: str) -> Request:
    """Refuse what cannot be planned; return the request with types and names as plans have them."""
    validate_request.check(request)
    error_budget.check(request)
    PLANNERS[planner]  # refuses an unknown planner before any work
    settings = STRATEGIES[request.strategy].settings(request.plan())
    params = {key: settings[key] for key in request.params}
    force = {tensor: find_method(wanted).name for tensor, wanted in request.force.items()}
    return replace(request, params=params, force=force)


def accepted(request: Request, plan: Plan) -> Plan:
    """Return the plan if it keeps what its request demands; refuse it otherwise."""
    STRATEGIES[plan.strategy].lower(plan, 0, {})
    if request.memory is not None and not fits(request, plan):
        raise refusal(request, plan)
    error_budget.check_plan(request, plan)
    plan.check()
    return plan


def by_planner(plan: Plan, planner: str) -> Plan:
    """Return the plan; refuse a planner that the plan's strategy does not use."""
    if plan.strategy in FRAMES and not plan.planner and planner != DEFAULT:
        raise CommschedError(
            f"--planner is not for strategy {plan.strategy!r}, which plans by itself; leave it out"
        )
    return plan
