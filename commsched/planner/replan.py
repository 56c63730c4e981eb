"""Plan again during a run, for the machine and the densities as measured now."""

from dataclasses import replace

from commsched.exchange.registry import find_method
from commsched.machine.model import Machine
from commsched.plan.model import Plan
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.planner.search.timing import iteration

PLANNING = 2.0  # s of search between two steps
WORTH = 0.01  # share of the iteration that a new plan must save


def replanned(plan: Plan, machine: Machine, stay: frozenset[str]) -> Plan:
    """Plan again for the machine as measured now; keep the launches if no others are faster.

    Tensors in `stay` and tensors with lossy methods keep their methods. All other methods are
    lossless, so the error budget need not be measured again.
    """
    kept = {
        piece.tensor: launch.method
        for launch in plan.launches
        for piece in launch.pieces
        if piece.tensor in stay or not find_method(launch.method).lossless
    }
    request = Request(
        net=plan.net,
        machine=machine,
        strategy=plan.strategy,
        params=plan.params,
        force=kept,
        mean=plan.mean,
        seed=plan.seed,
        time_limit=PLANNING,
    )
    made = replace(make_plan(request), max_error=plan.max_error)
    seconds = iteration(replace(plan, machine=machine))
    if iteration(made) < (1 - WORTH) * seconds:
        return made
    launches = tuple(replace(launch, reason=None) for launch in plan.launches)
    return replace(plan, machine=machine, launches=launches, iteration=seconds, bound=0.0)
