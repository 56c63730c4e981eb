"""The search of the planner `best` for buckets, order, methods and update window.

The first candidate comes from closed forms at once. Then follow dynamic programming over bucket
boundaries in two kinds of order, improvement by single changes, and all baselines; small instances
are solved exactly. The best few candidates and near baselines are simulated, and the fastest wins;
among equals, the one of least effort. If the machine file records held-out errors, the fastest is
the candidate whose expected iteration under such errors is shortest. A search with a time limit
first simulates dense plans, the first candidate and near baselines, keeps time for its last
simulations, and returns only a simulated candidate.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import takewhile

import numpy as np

from commsched.exchange.pair import LIBRARY
from commsched.planner.deadline import Deadline, OutOfTime
from commsched.planner.request import Request
from commsched.planner.search.branch_and_bound import MOST, UNITS, exact, size
from commsched.planner.search.dynamic import boundaries
from commsched.planner.search.fit_memory import fit_memory
from commsched.planner.search.improve import GAIN, SAME, improved, tidied
from commsched.planner.search.order import units_by_priority
from commsched.planner.search.prices import PriceTables
from commsched.planner.search.problem import BASELINES, NO_SEARCH, Narrower, Placed, Problem
from commsched.planner.search.risk import Risk
from commsched.planner.search.rivals import (
    LONG,
    MANY,
    NEAR,
    WHOLE,
    baselines,
    far,
    hopeless,
    near_baselines,
    simulated_up_to,
)
from commsched.planner.search.shortlist import Shortlist
from commsched.planner.search.trials import Offer, Trial, Trials, safe
from commsched.planner.space import Candidate, MethodChoice, Unit, bucket
from commsched.simulate.exchange_costs import Known

COUNTS = (1, 2, 4, 8, 16, 32, 64)  # buckets of the first plans
FINAL = 3  # candidates that are simulated
ROUNDS = 3  # rounds of reordering
FINE = 1e-6  # share of the iteration that a change must save if a baseline is ahead
IDEAL = 1e-6  # an iteration above the floor by at most this share of it counts as ideal


class Search:
    """The candidates found so far; an interrupt at any moment leaves them whole."""

    def __init__(
        self,
        request: Request,
        deadline: Deadline | None = None,
        exact: int = MOST,
        kept: Shortlist | None = None,
        tables: PriceTables | None = None,
        narrower: Narrower = NO_SEARCH,
    ) -> None:
        self.request = request
        self.trials = Trials(deadline or Deadline())
        self.kept = kept  # methods to consider; None: those near the fastest by closed forms
        self.exact = exact  # instances of up to this many candidates are solved exactly
        self.stopped = False
        self.tables = tables or PriceTables()
        self.narrower = narrower
        self.quick = Problem(request, quick=True, kept=kept, tables=self.tables)
        self.problem = self.quick
        self.found: list[Offer] = []  # by the fast evaluation, the best first
        self.rivals: list[tuple[float, Candidate]] = []  # baselines
        self.floor = self.quick.clock.floor(request.net.numel)
        self.passing: Offer | None = None  # the best candidate of the improvement under way
        self.simulated: tuple[Candidate | None, float] = None, 0.0  # the last leader, and its s
        self.early: list[Trial] = []  # simulated before the search, if it has a time limit
        self.untried: list[Placed] = []  # baselines too slow to simulate before the search
        self.reserve = 0.0  # s for the last simulations
        self._searching = False
        self.doubt = Risk.of(request)
        self.first = self._first()

    def _first(self) -> Candidate:
        """Return the best near-equal buckets by closed forms; an interrupt leaves it."""
        known = self._safe() if self.trials.deadline.limit is not None else None
        try:
            if known is not None:
                self._try_early(next(known))
            for candidate in self._equal():
                self.offer(candidate, "first")
            if known is not None:
                self._try_early(self.leader)
                for candidate in known:
                    if self._affords(candidate):
                        self._try_early(candidate)
                rivals = near_baselines(self.quick, self.narrower.methods, self.least)
                for candidate in rivals if self.request.bucket is None else ():
                    if self.trials.affords_early(len(candidate.choices)):
                        self._try_early(candidate)
                    else:
                        self.untried.append(Placed(self.quick, candidate))
        except KeyboardInterrupt:
            if not (self.found or self.early):
                raise
            self.stopped = True
        return self.leader if self.found else self.early[0].placed.candidate

    def _safe(self) -> Iterator[Candidate]:
        """Yield the candidates of a narrower search, or else dense plans."""
        starts = () if self.request.bucket is not None else self.narrower.starts
        known = [self.quick.moved(start.candidate, start.problem) for start in starts]
        return iter(known) if known else safe(self.quick)

    def _try_early(self, candidate: Candidate) -> None:
        self.early.append(self._trial(Placed(self.quick, candidate)))

    def over(self) -> bool:
        """Tell whether only the time for the last simulations is left."""
        return self.trials.deadline.left() <= self.reserve

    def _check(self) -> None:
        if self._searching and self.over():
            raise OutOfTime

    def _equal(self) -> Iterator[Candidate]:
        problem = self.problem
        total = 4.0 * self.request.net.numel
        limits = [max(total / count, 1.0) for count in COUNTS]
        if self.request.bucket is not None:
            limits = [self.request.bucket]
        for limit in limits:
            made = problem.filled(limit)
            methods = problem.cheapest(made)
            choices = tuple(MethodChoice(b, m) for b, m in zip(made, methods, strict=True))
            yield Candidate(choices, problem.late)

    def offer(self, candidate: Candidate, what: str) -> None:
        """Note a candidate."""
        seconds = self.problem.evaluator.one(candidate)
        better = not self.found or seconds < self.least * (1 - SAME)
        offered = Offer(seconds, candidate, self.problem.effort(candidate))
        self.found = sorted([*self.found, offered], key=lambda offer: offer.seconds)
        self.reserve = self.trials.reserve(len(self.leader.choices))
        if better and self.request.report is not None:
            self.request.report(what, seconds)

    @property
    def least(self) -> float:
        """Return the seconds of the best candidate."""
        return self.found[0].seconds

    @property
    def leader(self) -> Candidate:
        """Return the best candidate; among equals, the one of least effort."""
        limit = self.least * (1 + SAME)
        same = takewhile(lambda offer: offer.seconds <= limit, self.found)
        return min(same, key=lambda offer: offer.effort).candidate

    def done(self) -> bool:
        """Tell whether the time is up, or no iteration can be shorter."""
        return self.over() or (self.least <= self.floor * (1 + SAME) and self._ideal())

    def _ideal(self) -> bool:
        """Tell whether the simulated best candidate takes no longer than its rank's own work."""
        leader = self.leader
        if self.simulated[0] is not leader:
            here = Placed(self.problem, leader)
            self.simulated = leader, self._timed(leader).seconds + self._extra(here)
        return self.simulated[1] <= self.floor * (1 + IDEAL)

    def run(self) -> None:
        """Search until nothing helps, or the time is up."""
        if self.over() or self.stopped:
            return
        self._searching = True
        try:
            self._run()
        except OutOfTime:
            pass
        finally:
            self._searching = False
            if self.passing is not None and self.passing.seconds < self.least:
                self.found.insert(0, self.passing)

    def _run(self) -> None:
        whole = Problem(self.request, kept=self.kept, tables=self.tables, check=self._check)
        first = whole.moved(self.first, self.quick)
        offer = Offer(whole.evaluator.one(first), first, whole.effort(first))
        self.problem, self.found = whole, [offer]
        if self.request.bucket is not None:
            self._improve(self.leader, methods_only=True)
            return
        for start in self.narrower.starts:
            self.offer(self.problem.moved(start.candidate, start.problem), "narrower")
        if self.narrower.starts and self.done():
            return
        for candidate in self._equal():
            self.offer(candidate, "equal buckets")
        self._search()
        self._baselines()
        self._plain()
        self._careful()

    def _baselines(self) -> None:
        """Offer the plans of the baselines, and improve each that is better."""
        before, ours = self.least, self.leader
        names = (
            name
            for name in takewhile(lambda _: not self.done(), BASELINES)
            if not (name in WHOLE and hopeless(self.problem, self.least))
        )
        for name, candidate in baselines(self.problem, names, self.narrower.methods):
            if far(self.problem, candidate, self.leader):
                continue
            self.rivals.append((self.problem.evaluator.one(candidate), candidate))
            self.offer(candidate, name)
        if self.least < before * (1 - SAME) and not self.done():
            self._improve(ours, gain=FINE)
            self._improve(tidied(self.problem, self.leader))

    def _plain(self) -> None:
        """Improve the best boundaries for the library's own exchange, which others may miss."""
        library = self.problem.named(LIBRARY)
        if self.over() or library < 0 or not (self.doubt or self.request.lossy):
            return
        kept = Shortlist.of([self.problem.prices.methods[library]])
        plain = Problem(self.request, kept=kept, tables=self.tables, check=self._check)
        for late in (plain.late, plain.early):
            found = boundaries(plain, plain.units, late)
            self._improve(self.problem.moved(found, plain))

    def _careful(self) -> None:
        """Improve the candidate that is best if exchanges take their expected time."""
        if self.doubt is None or self.over():
            return
        careful = self.problem.lasting(self.doubt.mean)
        found = [o.candidate for o in self.found if len(o.candidate.choices) <= LONG]
        first = min(found, key=careful.evaluator.one, default=self.leader)
        self.offer(tidied(careful, improved(careful, first, self.over)), "careful")

    def _search(self) -> None:
        """Find boundaries and improve them: in backward order, then by priority."""
        problem, units = self.problem, self.problem.units
        if len(units) <= UNITS and size(problem, units) <= self.exact:
            self.offer(exact(problem, units, self.leader), "exact")
        self._ordered(units, self._as_launched)
        self._ordered(units_by_priority(problem, self._alone(), units), self._by_priority)
        self._ordered(self._by_priority(), self._by_priority)
        if not self.done():
            self._other_window()

    def _ordered(self, units: list[Unit], reordered: Callable[[], list[Unit]]) -> None:
        """Find and improve boundaries in one order of units after another, while that helps."""
        for _ in range(ROUNDS):
            if self.done():
                return
            before = self.least
            found = boundaries(self.problem, units, self.problem.late)
            self.offer(found, "boundaries")
            near = self.problem.evaluator.one(found) <= NEAR * self.least
            self._improve(found if near else self.leader)
            if self.least >= before * (1 - GAIN):
                return
            units = reordered()

    def _launched(self) -> list[MethodChoice]:
        """Return the leader's launches; if it has other units than the search, one per unit."""
        choices = self.leader.choices
        if {unit for choice in choices for unit in choice.bucket.units} == set(self.problem.units):
            return list(choices)
        return self._alone()

    def _alone(self) -> list[MethodChoice]:
        """Return one launch of each unit, by its cheapest method."""
        made = [bucket([unit]) for unit in self.problem.units]
        return [MethodChoice(b, m) for b, m in zip(made, self.problem.cheapest(made), strict=True)]

    def _as_launched(self) -> list[Unit]:
        return [unit for choice in self._launched() for unit in choice.bucket.units]

    def _by_priority(self) -> list[Unit]:
        return units_by_priority(self.problem, self._launched(), self.problem.units)

    def _improve(
        self, candidate: Candidate, methods_only: bool = False, gain: float = GAIN
    ) -> None:
        problem = self.problem
        found = candidate
        if len(candidate.choices) <= LONG:
            found = improved(problem, candidate, self.done, methods_only, gain, self._note)
        if not methods_only:
            found = tidied(problem, found)
        self.offer(found, "improvement")
        self.passing = None

    def _note(self, seconds: float, candidate: Candidate) -> None:
        self.passing = Offer(seconds, candidate, self.problem.effort(candidate))

    def _other_window(self) -> None:
        """Update at the end of the step instead, unless the user has decided."""
        if "overlap" in self.request.params:
            return
        self._improve(replace(self.leader, late=not self.leader.late))
        if self.request.lossy:  # with coding, the result depends more on where a search begins
            self._improve(boundaries(self.problem, self.problem.units, not self.problem.late))

    def _affords(self, candidate: Candidate) -> bool:
        return self.trials.affords(len(candidate.choices))

    def _trial(self, placed: Placed, known: Known | None = None) -> Trial:
        """Simulate a candidate; a search with a time limit first makes it fit into memory."""
        if self.request.memory is not None and self.trials.deadline.limit is not None:
            placed = placed._replace(candidate=fit_memory(*placed))
        return self.trials.run(placed, known)

    def _timed(self, candidate: Candidate) -> Trial:
        """Simulate one of this problem's candidates."""
        return self._trial(Placed(self.problem, candidate), self.tables.played)

    def _extra(self, placed: Placed) -> float:
        """Return the expected s by which a candidate's iteration exceeds the predicted one."""
        return 0.0 if self.doubt is None else self.doubt.extra(*placed)

    def _finalists(self) -> list[Candidate]:
        """List the leader and the best candidates with few launches, by expected iteration."""
        few = [offer for offer in self.found if len(offer.candidate.choices) <= MANY]
        ordered = [offer.candidate for offer in few]
        if self.doubt is not None:
            near = [o for o in few if o.seconds <= NEAR * self.least]
            longer = [o.seconds + self._extra(Placed(self.problem, o.candidate)) for o in near]
            ordered = [near[k].candidate for k in np.argsort(longer, kind="stable").tolist()]
        return [*dict.fromkeys([self.leader, *ordered])][:FINAL]

    def result(self) -> tuple[Placed, float | None]:
        """Return the chosen candidate, within the memory limit, and its simulated seconds.

        The seconds are None if nothing had to be simulated. A search with a time limit returns a
        simulated candidate if there is one.
        """
        chosen, seconds = self._chosen()
        if self.request.memory is not None:
            smaller = fit_memory(*chosen)
            if smaller is not chosen.candidate:
                seconds, chosen = self._trial(chosen._replace(candidate=smaller))
                if self.early:
                    seconds, chosen = self.trials.best
        return chosen, seconds

    def _chosen(self) -> tuple[Placed, float | None]:
        """Return the best candidate, simulated if there are several, and its simulated s.

        If the machine records held-out errors, the candidate with the least expected iteration
        wins, baselines included; among equals, the one of least effort.
        """
        if self.early and self.stopped:  # the search may have stopped before its first candidate
            seconds, chosen = self.trials.best
            return chosen, seconds
        leader = Placed(self.problem, self.leader)
        if self.early:
            if self.request.bucket is None and not self.over() and self.done():
                return leader, None
        elif self.stopped or self.over() or self.request.bucket is not None or self.done():
            return leader, None
        timed = [*self.early]

        def time(candidate: Candidate) -> None:
            new = Placed(self.problem, candidate) not in (trial.placed for trial in timed)
            if new and self._affords(candidate):
                timed.append(self._timed(candidate))

        first, *others = self._finalists()
        time(first)
        untried = [] if self.rivals else self.untried  # the search has not come to baselines
        for placed in untried:
            ahead = placed.problem.evaluator.one(placed.candidate) <= self.least
            if ahead and self._affords(placed.candidate):
                timed.append(self._trial(placed))
        for candidate in others:
            time(candidate)
        reach = min(trial.seconds for trial in timed) * self._play
        for seconds, candidate in self.rivals:
            if seconds <= simulated_up_to(self.problem, candidate) * reach:
                time(candidate)
        limit = min(trial.seconds for trial in timed) * self._play * (1 + SAME)
        allowed = [trial for trial in timed if trial.seconds <= limit]
        expected = [trial.seconds + self._extra(trial.placed) for trial in allowed]
        near = min(expected) * (1 + GAIN)
        same = [trial for s, trial in zip(expected, allowed, strict=True) if s <= near]
        seconds, chosen = min(same, key=lambda trial: trial.placed.effort)
        return chosen, seconds

    @property
    def _play(self) -> float:
        """Return the factor of the shortest simulated iteration within which plans are chosen."""
        return 1.0 if self.doubt is None else NEAR
