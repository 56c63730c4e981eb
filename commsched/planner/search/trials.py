"""Simulated plans of a search, and whether its time allows one more."""

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from commsched.planner.deadline import Deadline
from commsched.planner.search.problem import BASELINES, Effort, Placed, Problem
from commsched.planner.search.timing import iteration
from commsched.planner.space import Candidate
from commsched.simulate.exchange_costs import Known

LAST = 6  # simulations at the end of a search for which time is put aside
SPARE = 0.25  # share of the time limit for early simulations, or for all last ones but the first


class Offer(NamedTuple):
    """A candidate of a search with its effort, and the s of its iteration by fast evaluation."""

    seconds: float
    candidate: Candidate
    effort: Effort


class Trial(NamedTuple):
    """A candidate and its simulated iteration."""

    seconds: float
    placed: Placed


class Trials:
    """The candidates that a search has simulated.

    A simulation is expected to take no longer than an earlier one of as many or more launches, and
    no longer per launch than an earlier one of fewer launches.
    """

    def __init__(self, deadline: Deadline) -> None:
        self.deadline = deadline
        self.all: list[Trial] = []
        self._took: list[tuple[int, float]] = []  # launches, s of the clock
        self._known: Known = {}

    def run(self, placed: Placed, known: Known | None = None) -> Trial:
        """Simulate a candidate."""
        began = self.deadline.now()
        known = self._known if known is None else known
        found = Trial(iteration(placed.problem.plan(placed.candidate, "best"), known), placed)
        launches = len(placed.candidate.choices)
        self._took.append((launches, self.deadline.now() - began))
        self.all.append(found)
        return found

    def expected(self, launches: int) -> float:
        """Return the s that the next simulation takes at most; 0 before the first simulation."""
        each = (took * max(1.0, launches / count) for count, took in self._took)
        return min(each, default=0.0)

    def affords(self, launches: int, count: int = 1) -> bool:
        """Tell whether `count` more simulations end in time."""
        return count * self.expected(launches) <= self.deadline.left()

    def affords_early(self, launches: int) -> bool:
        """Tell whether one more simulation leaves most of the time to the search."""
        limit = self.deadline.limit or inf
        return self.expected(launches) <= self.deadline.left() - (1.0 - SPARE) * limit

    def reserve(self, launches: int) -> float:
        """Return the s to reserve for a search's last simulations: for one, for more if short."""
        limit, each = self.deadline.limit, self.expected(launches)
        if limit is None:
            return 0.0
        return max(each, min(LAST * each, SPARE * limit))

    @property
    def best(self) -> Trial:
        """Return the trial with the shortest iteration."""
        return min(self.all, key=lambda trial: trial.seconds)


def safe(problem: Problem) -> Iterator[Candidate]:
    """Yield dense plans that are made fast: one bucket, then DistributedDataParallel's buckets."""
    size = problem.request.bucket
    whole = problem.uniform(problem.filled(inf if size is None else size), problem.early)
    yield problem.within(whole)
    if size is None:
        yield problem.within(BASELINES["ddp-25mb"](problem))
