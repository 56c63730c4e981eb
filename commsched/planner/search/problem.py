"""The search problem of a request: its units, prices and clocks, and plans from candidates."""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, reduce
from typing import Any, NamedTuple, cast

import numpy as np

from commsched.cost import price
from commsched.errors import CommschedError
from commsched.exchange.method import Method
from commsched.exchange.pair import LIBRARY
from commsched.exchange.registry import find_method
from commsched.plan.model import Plan
from commsched.planner.deadline import Check, go_on
from commsched.planner.launches import filled, with_methods
from commsched.planner.limits.error_budget import ErrorBudget
from commsched.planner.request import Request
from commsched.planner.search.evaluate import Evaluator, Lasting
from commsched.planner.search.prices import Prices, PriceTables
from commsched.planner.search.shortlist import Shortlist
from commsched.planner.space import (
    MOST_PARTS,
    Bucket,
    Candidate,
    MethodChoice,
    StepClock,
    Unit,
    bucket,
    units,
    whole_tensors,
)
from commsched.program.registry import STRATEGIES
from commsched.registry import Registry

Baseline = Callable[["Problem"], Candidate]
BASELINES: Registry[Baseline] = Registry("baseline planner", "commsched.planner.baselines")


class Effort(NamedTuple):
    """The costs of a candidate besides its iteration, the most important first."""

    lossy: int  # launches
    launches: int
    seconds: float  # s of all exchanges, votes and coding


class Problem:
    """A request's units, prices and clocks for a search.

    `quick`: price only by closed forms, and fewer methods. `tables`: prices of another problem with
    the same net and machine. `check` is called while prices and candidates are computed; an error
    that it raises ends the search.
    """

    def __init__(
        self,
        request: Request,
        *,
        quick: bool = False,
        kept: Shortlist | None = None,
        tables: PriceTables | None = None,
        check: Check = go_on,
    ) -> None:
        self.request = request
        self.check = check
        self.clock = StepClock.of(request)
        self.guard = ErrorBudget(request)
        self.tables = tables or PriceTables()
        self.prices = Prices(request, 0 if quick else price.LIMIT, self.tables, check)
        sizes = [t.numel for t in request.net.tensors.values()] or [1]
        least = max(1, min(sizes) // MOST_PARTS)
        self.prices.least, self.prices.most = least, max(sum(sizes), least + 1)
        self.kept = self._chosen(quick) if kept is None else kept
        self.prices.consider(self.kept, leading=quick)
        if not self.prices.methods:
            raise CommschedError(
                "no method is allowed that sums a bucket over all ranks; --allow a codec"
            )
        for name in request.force.values():
            self.prices.add(find_method(name))
        self.evaluator = Evaluator(self.clock, self.prices, check=check)

    def _chosen(self, quick: bool) -> Shortlist:
        """Return the methods worth an exact price, under the error budget if there is one.

        A fast method leads only among the methods of tensors that may have it.
        """
        methods = list(self.request.methods(self.prices.group))
        if not self.guard.active:
            return self.prices.choose(methods, quick)
        tensors = self.request.net.tensors.values()
        sets = [tuple(m for m in methods if self.guard.tensor(m, t)) for t in tensors]
        sets += [tuple(m for m in methods if m.lossless)]  # any bucket may have these
        every = (self.prices.choose([*some], quick) for some in dict.fromkeys(sets))
        return reduce(Shortlist.joined, every)

    def rough(self, methods: Iterable[Method]) -> "Problem":
        """Return the problem of the same request with other methods, priced by closed forms."""
        kept = Shortlist.of(methods)
        return Problem(self.request, quick=True, kept=kept, tables=self.tables, check=self.check)

    def lasting(self, how_long: Lasting) -> "Problem":
        """Return this problem with other durations of launches; candidates fit both problems."""
        other = copy(self)
        other.evaluator = Evaluator(self.clock, self.prices, how_long, self.check)
        return other

    @cached_property
    def units(self) -> list[Unit]:
        """Return the units of the search, in backward order."""
        return units(self.request, self.clock)

    @cached_property
    def tensors(self) -> list[Bucket]:
        """Return a bucket per whole tensor, in backward order."""
        known = self.request.net.derived  # the last clock's; machines often differ only in links
        key = self.clock.ready, tuple(self.request.force.items())
        was, found = cast("tuple[Any, list[Bucket]]", known.get("tensors", ((), [])))
        if was != key:
            found = [bucket([unit]) for unit in whole_tensors(self.request, self.clock)]
            known["tensors"] = key, found
        return found

    @property
    def late(self) -> bool:
        """Tell whether buckets are applied during the next forward pass by default."""
        return self.request.params.get("overlap", "forward") == "forward"

    @property
    def early(self) -> bool:
        """Tell whether buckets are applied late under a planner whose system updates at the end."""
        return self.request.params.get("overlap", "backward") == "forward"

    def named(self, name: str) -> int:
        """Return the number of a method, or of the cheapest allowed one if it is not allowed."""
        for number, method in enumerate(self.prices.methods):
            if method.name == name:
                return number
        if any(m.name == name for m in self.request.methods(self.prices.group)):
            return self.prices.add(find_method(name))
        return -1

    def moved(self, candidate: Candidate, other: "Problem") -> Candidate:
        """Return another problem's candidate in this one's numbers; replace unknown methods."""
        found = []
        for made, method in candidate.choices:
            number = self.named(other.prices.methods[method].name)
            found.append(MethodChoice(made, number if number >= 0 else self.cheapest([made])[0]))
        return Candidate(tuple(found), candidate.late)

    def options(self, made: Bucket) -> list[int]:
        """List the methods that a bucket may have."""
        if made.forced:
            return [self.named(made.forced)]
        found = self.prices.free if made.sparse else self.prices.plain
        if not self.guard.active:
            return found
        methods = self.prices.methods
        return [m for m in found if self.guard.allows(methods[m], made)] or found

    def allows(self, choice: MethodChoice) -> bool:
        """Tell whether a bucket may have its method under the error budget."""
        made, method = choice
        return not self.guard.active or self.guard.allows(self.prices.methods[method], made)

    def within(self, candidate: Candidate) -> Candidate:
        """Return the candidate with other methods for buckets that exceed the error budget."""
        return Candidate(
            tuple(
                one
                if self.allows(one)
                else MethodChoice(one.bucket, self.cheapest([one.bucket])[0])
                for one in candidate.choices
            ),
            candidate.late,
        )

    def library(self, made: Bucket) -> int:
        """Return the library's own all-reduce, or else the cheapest method."""
        number = -1 if made.forced else self._library
        return number if number >= 0 else self.cheapest([made])[0]

    @cached_property
    def _library(self) -> int:
        return self.named(LIBRARY)

    def cheapest(self, made: Sequence[Bucket]) -> list[int]:
        """Return for each bucket the method with the least seconds alone."""
        names = [method.name for method in self.prices.methods]
        return [
            min(self.options(one), key=lambda m: (seconds[m], names[m]))
            for one, seconds in zip(made, self.alone(made), strict=True)
        ]

    def alone(self, made: Sequence[Bucket]) -> np.ndarray:
        """Return (buckets, methods) s of single buckets, packing included; forced methods too."""
        count = len(self.prices.methods)
        table = np.full((len(made), count), np.inf)
        for method in range(count):
            where = [i for i, b in enumerate(made) if method in self.options(b)]
            if where:
                rows = self.prices.rows([made[i] for i in where], [method] * len(where), 0.0)
                table[where, method] = rows.seconds.sum(axis=(0, 1))
        return table

    def effort(self, candidate: Candidate) -> Effort:
        """Return the effort, which decides between candidates of equal iterations."""
        methods = [self.prices.methods[choice.method] for choice in candidate.choices]
        made = [choice.bucket for choice in candidate.choices]
        rows = self.prices.rows(made, [choice.method for choice in candidate.choices], 0.0)
        lossy = sum(not method.lossless for method in methods)
        return Effort(lossy, len(methods), float(rows.seconds.sum()))

    def uniform(self, made: Iterable[Bucket], late: bool) -> Candidate:
        """Return a candidate with every bucket by the library's own all-reduce."""
        return Candidate(tuple(MethodChoice(b, self.library(b)) for b in made), late)

    def filled(self, limit: float, first: float | None = None) -> list[Bucket]:
        """Fill buckets of at most `limit` bytes with whole tensors in backward order."""
        units = (one.units[0] for one in self.tensors)
        groups = filled(units, lambda unit: bool(unit.forced), limit, first)
        return [bucket(group) for group in groups]

    def plan(self, candidate: Candidate, planner: str) -> Plan:
        """Return the plan of a candidate, without reasons."""
        request, methods = self.request, self.prices.methods
        plan = with_methods(
            request,
            [choice.bucket.pieces for choice in candidate.choices],
            [methods[choice.method].name for choice in candidate.choices],
        )
        params = dict(request.params)
        if STRATEGIES[request.strategy].sums_every_step:
            params["overlap"] = "forward" if candidate.late else "backward"
        return replace(plan, params=params, planner=planner)


class Placed(NamedTuple):
    """A candidate, and the problem that numbers its methods."""

    problem: Problem
    candidate: Candidate

    @property
    def effort(self) -> Effort:
        """See `Problem.effort`."""
        return self.problem.effort(self.candidate)

    @property
    def names(self) -> set[str]:
        """Return the names of its methods."""
        return {self.problem.prices.methods[c.method].name for c in self.candidate.choices}


class Narrower(NamedTuple):
    """The results of searches among fewer methods."""

    starts: Sequence[Placed] = ()  # candidates to improve on
    methods: frozenset[str] = frozenset()  # baselines with only these methods were tried there


NO_SEARCH = Narrower()
