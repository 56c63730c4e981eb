"""The best plan of a request for each of several families of methods, each wider than the last."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.exchange.registry import METHODS, find_method, lossy_name
from commsched.machine.trust import errors_of
from commsched.plan.model import Alternative, Plan
from commsched.planner.deadline import Deadline
from commsched.planner.limits.memory import fitting, needed
from commsched.planner.make_plan import accepted, checked, make_plan
from commsched.planner.planners.best import (
    Found,
    placed_by,
    searched,
    searches,
    with_reasons,
)
from commsched.planner.reasons.verdict import NOTHING, label
from commsched.planner.registry import DEFAULT, FRAMES
from commsched.planner.request import Report, Request
from commsched.planner.search.candidates import IDEAL
from commsched.planner.search.prices import PriceTables
from commsched.planner.search.problem import BASELINES, Narrower, Placed, Problem
from commsched.planner.search.timing import predicted
from commsched.planner.space import StepClock
from commsched.timeline.spread import interval
from commsched.timeline.totals import median

HALF = ("fp16", "bf16")
NO_PLAN = "interrupted before a plan was found; nothing is written"


class Family(NamedTuple):
    """A set of methods, and the request that allows only these."""

    name: str
    request: Request
    methods: frozenset[str]

    @classmethod
    def of(cls, name: str, request: Request) -> "Family":
        """Return the family of a request's methods, forced methods included."""
        allowed = {method.name for method in request.methods(request.machine.everyone)}
        forced = {find_method(wanted).name for wanted in request.force.values()}
        return cls(name, request, frozenset(allowed | forced))

    def has(self, plan: Plan) -> bool:
        """Tell whether a plan uses only methods of this family."""
        return all(launch.method in self.methods for launch in plan.launches)


class Known(NamedTuple):
    """A plan, its row in the comparison, and the search that found it."""

    plan: Plan
    told: Alternative | None  # None: the search was interrupted
    found: Found | None  # None: the plan's planner does not search


class Planned(NamedTuple):
    """The plan that a request gets."""

    plan: Plan
    interrupted: bool
    best: Mapping[str, Plan] = MappingProxyType({})  # of each family that was compared


def plan_with_verdict(
    request: Request, planner: str = DEFAULT, others: Sequence[Plan] = ()
) -> Planned:
    """Plan, and compare with the best plans of narrower and wider families of methods.

    The plan of a family is the best plan in it that any search has found, so a wider family is
    never slower. A search starts from the best plan of the narrower families. If the best lossless
    plan is dense, no search for dense plans is needed. Among plans that differ by at most NOTHING,
    the plan of the narrowest family wins. `time_limit` holds for all searches together. Ctrl-C ends
    the comparison: the best plan so far that the request allows is returned.
    others: further plans of the request to compare.
    """
    request = checked(request, planner)
    compared = request.strategy not in FRAMES and request.machine.size > 1
    if not (compared and searches(request)):
        return Planned(make_plan(request, planner), interrupted=False)
    chain = _Chain(request, planner, others)
    try:
        chain.run()
        return chain.result()
    except KeyboardInterrupt:
        chain.interrupted = True
        return chain.result()


def families(request: Request) -> Iterator[Family]:
    """Yield the families to compare: each after the families inside it, the request's own included.

    Dense values only; all lossless methods; 16 bits; all that the request allows. If it allows no
    16-bit codec, the one that the device codes fastest comes last, unless losses are refused.
    """
    exact = without_losses(request)
    lossless = list(exact.methods(request.machine.everyone))
    packed = frozenset(method.name for method in lossless if method.compresses)
    yield Family.of("dense", replace(exact, without=exact.without | packed))
    yield Family.of("lossless", exact)
    allowed = lossy(request)
    half = tuple(name for name in HALF if name in allowed)
    if half and len(half) < len(allowed):
        yield Family.of("half", replace(request, lossy=half))
    if allowed:
        yield Family.of("allowed", request)
    if not half and not request.lossless:
        wider = replace(request, lossy=(_fastest(request),))
        if not all(method.lossless for method in wider.methods(request.machine.everyone)):
            yield Family.of("half", wider)


def lossy(request: Request) -> tuple[str, ...]:
    """Return the lossy codecs and methods that a request allows."""
    names = dict.fromkeys(lossy_name(name) for name in request.lossy)
    return tuple(n for n in names if not (CODECS[n] if n in CODECS else METHODS[n]).lossless)


def without_losses(request: Request) -> Request:
    """Return the request without its lossy codecs and methods."""
    losing = lossy(request)
    kept = (name for name in request.lossy if lossy_name(name) not in losing)
    return replace(request, lossy=tuple(kept))


def _fastest(request: Request) -> str:
    """Return the 16-bit codec: with an error budget the more exact one, else the faster one."""

    def seconds(name: str) -> float:
        rate = CODECS[name].rate(request.machine.device)
        return rate.encode + rate.add + rate.decode

    return HALF[0] if request.max_error is not None else min(HALF, key=seconds)


class _Chain:
    """The plans made so far."""

    def __init__(self, request: Request, planner: str, others: Sequence[Plan]) -> None:
        self.request = request
        self.planner = planner
        self.others = others
        self.families = list(families(request))
        self.asked: list[Family] = []  # families that were searched
        self.tables = PriceTables()
        self.floor = StepClock.of(request).floor(request.net.numel)
        self.known: list[Known] = []
        self.theirs: Placed | None = None  # of the baseline that was asked for
        self.refused: CommschedError | None = None
        self.interrupted = False

    @property
    def own(self) -> Family:
        """Return the family of all methods that the request allows."""
        name = "allowed" if lossy(self.request) else "lossless"
        return next(family for family in self.families if family.name == name)

    def run(self) -> None:
        """Plan by the planner that the user named, then search the families."""
        dense, lossless, *lossy = self.families
        limit, count = self.request.time_limit, len(self.families)
        ends = [Deadline(limit and limit * k / count) for k in range(1, count + 1)]
        if self.planner != DEFAULT:
            self._add(self._theirs())
        for plan in self.others:
            self._add(plan)
        for family, end in zip((lossless, dense, *lossy), ends, strict=True):
            best = self._best(family)
            if best is None or not self._certain(family, best):
                if family is not self.own and end.over():
                    continue
                try:
                    found = self._search(family, best, end)
                except CommschedError as error:  # nothing fits into the memory
                    self.refused = error
                    continue
                self.interrupted = found.stopped
                self._add(found.plan, found)
            if self.interrupted:
                return
            self.asked.append(family)

    def _theirs(self) -> Plan:
        """Return the plan of the planner that the user named; a baseline's has no reasons yet."""
        if self.planner not in BASELINES:
            return make_plan(self.request, self.planner)
        self.theirs, plan = placed_by(self.planner, Problem(self.request))
        return accepted(self.request, plan)

    def _best(self, family: Family) -> Known | None:
        """Return a family's best plan; among plans within NOTHING, the one of fewest methods."""
        inside = [one for one in self.known if family.has(one.plan)]
        least = min((one.plan.iteration for one in inside), default=0.0)
        near = [one for one in inside if one.plan.iteration <= least * (1 + NOTHING)]
        return min(near, key=lambda one: (self._width(one), one.plan.iteration), default=None)

    def _width(self, one: Known) -> int:
        """Return the position of the narrowest family that contains the plan."""
        return next((k for k, family in enumerate(self.families) if family.has(one.plan)), 0)

    def _certain(self, family: Family, best: Known) -> bool:
        """Tell whether the best known plan of a family is surely its best, so that no search helps.

        The plan takes no longer than a rank's own work, or is the best of a wider family.
        """
        wider = (one for one in self.asked if family.methods <= one.methods)
        least = best.plan.iteration <= self.floor * (1 + IDEAL)
        return least or any(self._best(one) is best for one in wider)

    def _search(self, family: Family, best: Known | None, end: Deadline) -> Found:
        """Search a family from the best plan inside it."""
        found: list[Found] = []
        starts = [best.found.placed] if best is not None and best.found is not None else []
        inside = [one.methods for one in self.asked if one.methods < family.methods]
        narrower = Narrower(starts, max(inside, key=len, default=frozenset()))

        def planner(request: Request) -> Plan:
            stopped = any(one.stopped for one in found)
            deadline = end.passed() if stopped else end
            found.append(searched(request, deadline, self.tables, narrower))
            return found[-1].plan

        request = replace(family.request, report=self._report(family))
        plan = planner(request) if request.memory is None else fitting(request, planner)
        (made,) = (one for one in found if one.plan is plan)
        return made._replace(stopped=any(one.stopped for one in found))

    def _add(self, plan: Plan, found: Found | None = None) -> None:
        """Note a plan; simulate it for the comparison unless the search was interrupted."""
        self.known.append(Known(plan, None, found))
        if self.interrupted:
            return
        totals = predicted(plan, self.tables.played).totals
        iteration, exposed = median(totals.iteration), median(totals.exposed)
        sure = interval(totals, errors_of(plan.machine, plan.net.occupies_cores))
        assert iteration is not None
        assert exposed is not None
        assert sure is not None
        force = self.request.force
        free = [one.method for one in plan.launches if one.pieces[0].tensor not in force]
        used = {find_method(name).coding for name in free} - {"dense"}
        told = Alternative(
            family="planner",
            used=tuple(sorted(used)),
            iteration=iteration,
            low=sure.low,
            high=sure.high,
            exposed=exposed,
            memory=needed(plan),
        )
        plan = replace(plan, iteration=iteration, bound=min(plan.bound, iteration))
        self.known[-1] = Known(plan, told, found)

    def _report(self, family: Family) -> Report | None:
        """Return a report function that adds the name of the family to each better plan."""
        report = self.request.report
        if report is None:
            return None
        title = label(family.name, lossy(family.request))
        return lambda what, seconds: report(f"{title}, {what}", seconds)

    def result(self) -> Planned:
        """Return the plan of the request with its reasons and all that was compared."""
        chosen = self._best(self.own) if self.planner == DEFAULT else next(iter(self.known), None)
        if chosen is None:
            raise self.refused or KeyboardInterrupt(NO_PLAN)
        plan = chosen.plan
        if not self.interrupted:  # reasons may take long
            if self.theirs is not None:
                plan = with_reasons(plan, self.theirs)
            elif chosen.found is not None:
                problem = Problem(self.own.request, tables=self.tables)
                plan = with_reasons(plan, chosen.found.placed, problem)
        plan = accepted(self.request, replace(plan, alternatives=tuple(self._rows())))
        best = {family.name: one.plan for family, one in self._compared()}
        return Planned(plan, self.interrupted, best)

    def _compared(self) -> Iterator[tuple[Family, Known]]:
        """Yield the best plan of each family searched."""
        for family in self.families:
            best = self._best(family) if family in self.asked else None
            if best is not None:
                yield family, best

    def _rows(self) -> Iterator[Alternative]:
        """Yield the plan of the planner that the user named, and the best plan of each family."""
        if self.planner != DEFAULT and self.known[0].told is not None:
            yield self.known[0].told
        for family, best in self._compared():
            if best.told is not None:
                yield replace(best.told, family=family.name, allow=lossy(family.request))
