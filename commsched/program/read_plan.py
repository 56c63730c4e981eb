"""Reading of plans whose strategy and methods are known, so that they can be run and simulated."""

from pathlib import Path
from typing import Any, Protocol

from commsched import shipped
from commsched.errors import CommschedError
from commsched.exchange.registry import find_method
from commsched.plan import file as plan_file
from commsched.plan.model import Plan
from commsched.program.registry import STRATEGIES


class HasPlan(Protocol):
    """An object that holds a plan: a `commsched.Plan`."""

    model: Plan


AnyPlan = Plan | str | Path | HasPlan


def read_plan(path: str | Path) -> Plan:
    """Read and check a plan file."""
    if str(path) in shipped.names("nets") and not Path(path).exists():
        raise CommschedError(
            f"{path} is a net, not a plan; first: commsched plan {path} --machine M -o plan.json"
        )
    return _known(plan_file.read(path), str(path))


def plan_from_data(data: Any, where: str) -> Plan:
    """Build and check a plan from parsed JSON; `where` names the file in errors."""
    return _known(plan_file.from_data(data, where), where)


def checked_plan(given: AnyPlan) -> Plan:
    """Check a plan that a user's program gives, as a plan file is checked."""
    if isinstance(given, str | Path):
        return read_plan(given)
    plan = given if isinstance(given, Plan) else getattr(given, "model", None)
    if not isinstance(plan, Plan):
        raise CommschedError(f"a plan or the name of its file is expected, got {given!r}")
    return plan_from_data(plan_file.to_data(plan), "plan")


def _known(plan: Plan, where: str) -> Plan:
    """Refuse an unknown strategy or method, and wrong parameters; return the plan."""
    try:
        STRATEGIES[plan.strategy].settings(plan)
    except CommschedError as error:
        raise CommschedError(f"{where}: {error}") from None
    for method, launch in {launch.method: launch.name for launch in plan.launches}.items():
        try:
            find_method(method)
        except CommschedError as error:
            raise CommschedError(f"{where}: launch {launch!r}: {error}") from None
    return plan
