"""The fastest of a few plans by simulation, for strategies that no planner searches."""

from collections.abc import Iterable
from dataclasses import replace

from commsched.machine.model import Machine
from commsched.plan.model import Plan
from commsched.planner.deadline import Deadline
from commsched.planner.limits.memory import fits, needed
from commsched.planner.request import Request
from commsched.planner.search.rivals import NEAR
from commsched.planner.search.timing import iteration
from commsched.simulate.exchange_costs import Known

GROWTH = 2.0  # the next plan may take this many times the longest so far: twice the launches
TICK = 1e-6  # s, assumed if the clock has not advanced


def fastest(request: Request, plans: Iterable[Plan]) -> Plan:
    """Simulate plans as they are made; return the one with the shortest iteration.

    Plans that do not fit into memory are left out; if none fits, the plan that needs least is
    returned. The first plan that fits is simulated under any time limit, the others while time is
    left; so `plans` should begin with those that are made fast. Jitter and stalls delay all plans
    by about as much, and take most of a simulation's time: plans are simulated without them first,
    and with them only if they are near the fastest.
    """
    end, alike, real = Deadline(request.time_limit), request.machine.alike, request.machine
    smooth = real if alike else replace(real, jitter=0.0, stalls=())
    known: Known = {} if request.played is None else request.played
    limited = replace(request, memory=request.room)

    def timed(plan: Plan, on: Machine) -> Plan:
        few = on is smooth
        return replace(plan, iteration=iteration(replace(plan, machine=on), known, few))

    found: list[Plan] = []  # without jitter
    exact: list[Plan] = []  # as the machine is
    least: Plan | None = None  # the plan that needs least memory
    longest, slower = 0.0, 1.0  # s to make and simulate a plan; factor of that with jitter
    began = end.now()
    for plan in plans:
        if not fits(limited, plan):
            least = min(filter(None, (least, plan)), key=needed)
            continue
        if any(plan.launches == other.launches for other in found):
            continue
        found.append(timed(plan, smooth))
        longest = max(longest, end.now() - began)
        if not alike and not exact:
            exact.append(timed(plan, real))
            slower = (end.now() - began) / max(longest, TICK)
        if GROWTH * longest * slower > end.left():
            break
        began = end.now()
    if not found:
        assert least is not None
        return timed(least, real)
    if alike:
        return min(found, key=_seconds)
    found.sort(key=_seconds)
    for plan in found:
        if plan.iteration > NEAR * found[0].iteration or longest * slower > end.left():
            break
        if plan.launches != exact[0].launches:
            exact.append(timed(plan, real))
    return min(exact, key=_seconds)


def _seconds(plan: Plan) -> float:
    return plan.iteration
