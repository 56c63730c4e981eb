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

GROWTH = 2.0  # times the s of the longest turn so far: the next plan has about twice the launches
TICK = 1e-6  # s of a clock that has not moved on


def fastest(request: Request, plans: Iterable[Plan]) -> Plan:
    """Simulate plans as they are made; return the one of the shortest iteration, with it.

    Plans that do not fit into memory are left out; if none fits, the one that needs least is
    returned. The first one that fits is simulated under any time limit, others while it allows
    them; so plans that are soon made come first. Jitter and stalls delay all plans about alike,
    and take most of the time of a simulation: only plans that are near the fastest without them
    are simulated with them.
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
    least: Plan | None = None  # of memory, where none fits
    longest, slower = 0.0, 1.0  # s to make a plan and to simulate it; times these, with jitter
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
