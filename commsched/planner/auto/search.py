"""The search among candidates: the fastest floors first, and none that is surely slow."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from typing import NamedTuple

from commsched.errors import CommschedError
from commsched.planner.auto.candidates import LeftOut, StrategyCandidate, candidates, larger
from commsched.planner.auto.floor import floor
from commsched.planner.auto.rows import Row, learning, outline, request_of, row, runner_up
from commsched.planner.deadline import Deadline
from commsched.planner.limits.memory import needed
from commsched.planner.registry import OUTLINES
from commsched.planner.request import Request
from commsched.program.registry import STRATEGIES
from commsched.units import seconds

LONGER = (
    "the cost in learning of steps with more batches than ranks is not measured; --unmeasured tries"
    " them"
)
NO_TIME = "no time was left"
SLOWER = "above the runner-up"
HIDDEN = "above the best of the strategy, and not measured in learning"
PARTS = 4  # a candidate may take 1/PARTS of the time left, or more if fewer candidates wait
Say = Callable[[str], None]


class _Unplanned(NamedTuple):
    """A candidate that is not planned yet."""

    candidate: StrategyCandidate
    floor: float  # s, a lower bound of its row's time


class StrategySearch:
    """The rows so far."""

    def __init__(
        self,
        request: Request,
        planner: str,
        limit: float,
        lost: float,
        unmeasured: bool,
        say: Say,
        exhaustive: bool,
    ) -> None:
        self.request, self.planner, self.limit = request, planner, limit
        self.lost, self.unmeasured, self.say = lost, unmeasured, say
        self.exhaustive = exhaustive
        self.floors: dict[str, float] = {}  # by candidate's words, s
        self.hidden: set[str] = set()  # candidates that may not be chosen, whatever their launches
        self.rows: list[Row] = []
        self.left_out: list[LeftOut] = []
        self.stopped = False
        self.deadline = Deadline(request.time_limit)
        self.over = self.deadline.over

    def run(self) -> None:
        """Plan every candidate until the time is over; an interrupt keeps the rows so far.

        Strategies whose ranks compute the whole net come first, then pipelines. Within either kind,
        candidates are planned in the order of their floors. Candidates whose floor is above the
        runner-up's time are left out, since their own time is then above it, too. Candidates that
        are refused because nobody has measured their cost in learning come last; they are planned
        only if they may be the best of their strategy.
        """
        found = [*candidates(self.request)]
        self.left_out += [each for each in found if isinstance(each, LeftOut)]
        known = [each for each in found if isinstance(each, StrategyCandidate)]
        for outlined in (False, True):
            some = iter([each for each in known if (each.strategy in OUTLINES) == outlined])
            later = 0 if outlined else sum(each.strategy in OUTLINES for each in known)
            while waiting := [*self._waiting(some)]:
                waiting.sort(key=lambda one: (one.candidate.words in self.hidden, one.floor))
                self._all(waiting, later)
        place = {each.words: number for number, each in enumerate(known)}
        self.rows.sort(key=lambda row: (row.time, place[row.candidate.words]))

    def _all(self, waiting: Sequence[_Unplanned], later: int) -> None:
        """Plan candidates in their order; `later` others come after them."""
        for number, (each, least) in enumerate(waiting):
            most, why = self._most(each)
            if self.stopped:
                self.left_out.append(LeftOut(each, NO_TIME))
            elif least > most:
                self.left_out.append(LeftOut(each, why, floor=least))
            else:
                self._say(each, number, len(waiting))
                with self._noted(each):
                    self._try(each, len(waiting) - number + later)

    @contextmanager
    def _noted(self, candidate: StrategyCandidate) -> Iterator[None]:
        """Note why a candidate has no row; stop when interrupted, or when the time is over."""
        try:
            yield
        except CommschedError as error:
            self.left_out.append(LeftOut(candidate, str(error)))
        except KeyboardInterrupt:
            if not self.rows:
                raise
            self.stopped = True
            self.left_out.append(LeftOut(candidate, "interrupted"))
        self.stopped = self.stopped or (self.over() and bool(self._legal()))

    def _waiting(self, some: Iterator[StrategyCandidate]) -> Iterator[_Unplanned]:
        """Yield all remaining candidates that may be planned; a single one once time is over."""
        for each in some:
            with self._noted(each):
                self._floor(each)
            if each.words in self.floors:
                yield _Unplanned(each, self.floors[each.words])
                if self.over():
                    return

    def _floor(self, candidate: StrategyCandidate) -> None:
        """Note a candidate's floor if it fits and may be chosen.

        A parameter that only saves memory keeps the floor of the candidate without it.
        """
        if self.stopped:
            raise CommschedError(NO_TIME)
        spare = larger(candidate, dict(self.request.params))
        if spare is not None and spare.words in self.floors:
            self.floors[candidate.words] = self.floors[spare.words]
            if spare.words in self.hidden:
                self.hidden.add(candidate.words)
            return
        wanted = request_of(self.request, candidate, self.limit)
        plan = outline(wanted)
        if plan.strategy in OUTLINES and needed(plan) > self.limit:
            self.left_out.append(LeftOut(candidate, "does not fit", needed(plan)))
            return
        batches = STRATEGIES[plan.strategy].batches(plan)
        if batches > plan.machine.size and not self.unmeasured:
            raise CommschedError(LONGER)
        self.floors[candidate.words] = floor(plan) * plan.machine.size / batches
        # A strategy not measured without lossy launches was not measured with them either.
        if not self.unmeasured and learning(plan, batches).lost is None:
            self.hidden.add(candidate.words)

    def _try(self, candidate: StrategyCandidate, waiting: int) -> None:
        """Plan a candidate unless it only saves memory that is not needed.

        It may take a part of the time left, so that the first candidates leave time to the others.
        """
        spare = larger(candidate, dict(self.request.params))
        if spare is not None and spare in [one.candidate for one in self.rows]:
            return
        request = self.request
        if request.time_limit is not None:
            left = max(self.deadline.left(), 0.0)
            request = replace(request, time_limit=left / min(waiting, PARTS))
        found = row(request, candidate, self.planner, self.limit)
        self.rows.append(replace(found, refused=found.refused or self._refused(found)))

    def _legal(self) -> list[Row]:
        """Return the rows that may be chosen, by time."""
        return sorted((one for one in self.rows if not one.refused), key=lambda one: one.time)

    def _second(self) -> float:
        """Return a time, s; a row above it is neither the winner nor the runner-up."""
        legal = self._legal()
        second = runner_up(legal) if legal and not self.exhaustive else None
        alone = second is None or second.candidate.strategy == legal[0].candidate.strategy
        return inf if second is None or alone else second.time

    def _most(self, candidate: StrategyCandidate) -> tuple[float, str]:
        """Return a time, s, above which a candidate need not be planned, and why."""
        found = [(self._second(), SLOWER)]
        if candidate.words in self.hidden and not self.exhaustive:
            own = (one for one in self.rows if one.candidate.strategy == candidate.strategy)
            found.append((min((one.time for one in own), default=inf), HIDDEN))
        return min(found)

    def _say(self, candidate: StrategyCandidate, number: int, count: int) -> None:
        """Say what is planned, how many candidates wait, and the best time so far."""
        legal = self._legal()
        best = f", best so far {seconds(legal[0].time)}" if legal else ""
        self.say(f"{candidate.words}, {number + 1} of {count}{best}")

    def _refused(self, found: Row) -> str:
        """Say why the cost in learning forbids to choose a row; empty if it does not."""
        lost = found.learning.lost
        if lost is None:
            return "" if self.unmeasured else "its cost in learning was not measured"
        return f"loses more than {self.lost:g} in learning" if lost > self.lost else ""
