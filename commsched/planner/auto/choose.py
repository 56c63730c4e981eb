"""Choose among all strategies: the least time of the rows that may be chosen, and why."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from commsched.errors import CommschedError
from commsched.planner.auto.candidates import Candidate, LeftOut, candidates, larger
from commsched.planner.auto.learning import may_be_chosen
from commsched.planner.auto.rows import Row, bare, request_of, risky, row
from commsched.planner.frames.pipelines import staged
from commsched.planner.limits.memory import needed
from commsched.planner.planners.best import until
from commsched.planner.request import Request
from commsched.program.registry import STRATEGIES
from commsched.program.stages import PipelineStrategy
from commsched.units import nbytes

LONGER = (
    "the cost in learning of steps with more batches than ranks is not measured; --unmeasured tries"
    " them"
)
Say = Callable[[str], None]

LOST = 0.5  # points of accuracy, or per cent of the loss, that a choice may lose by default


@dataclass(frozen=True, kw_only=True)
class Choice:
    """All rows by time, the winner among them, and what was left out."""

    rows: tuple[Row, ...]
    left_out: tuple[LeftOut, ...]
    winner: Row
    runner_up: Row | None  # the best row of another strategy, or else of other parameters
    limit: float  # B per rank
    stopped: bool  # by an interrupt or the time limit
    over: bool  # whether the time limit has ended

    @property
    def best(self) -> tuple[Row, ...]:
        """Return the best row of each strategy that may be chosen, or else its best row."""
        found: dict[str, Row] = {}
        for one in self.rows:
            there = found.get(one.candidate.strategy)
            if there is None or (there.refused and not one.refused):
                found[one.candidate.strategy] = one
        return tuple(sorted(found.values(), key=lambda one: one.time))


def choose(
    request: Request,
    planner: str,
    lost: float = LOST,
    unmeasured: bool = False,
    say: Say = lambda _: None,
) -> Choice:
    """Plan all candidates within the memory; the winner is the least time of the legal rows."""
    limit = request.memory or request.machine.device.memory
    wanted = replace(request, report=None, coded=may_be_chosen(lost, unmeasured))
    search = _Search(wanted, planner, limit, lost, unmeasured, say)
    search.run()
    rows = sorted(search.rows, key=lambda one: one.time)
    legal = [one for one in rows if not one.refused]
    if not legal:
        raise _nothing(rows, search.left_out, limit, lost)
    first, second = legal[0], runner_up(legal)
    choice = Choice(
        rows=tuple(rows),
        left_out=tuple(search.left_out),
        winner=first,
        runner_up=second,
        limit=limit,
        stopped=search.stopped,
        over=search.over(),
    )
    return choice if search.stopped else _with_risks(choice)


def runner_up(legal: Sequence[Row]) -> Row | None:
    """Return the best row of another strategy than the first's, or else of other parameters."""
    first, *others = legal
    apart = (one for one in others if one.candidate.strategy != first.candidate.strategy)
    return next(apart, others[0] if others else None)


class _Search:
    """The rows so far."""

    def __init__(
        self,
        request: Request,
        planner: str,
        limit: float,
        lost: float,
        unmeasured: bool,
        say: Say,
    ) -> None:
        self.request, self.planner, self.limit = request, planner, limit
        self.lost, self.unmeasured, self.say = lost, unmeasured, say
        self.rows: list[Row] = []
        self.left_out: list[LeftOut] = []
        self.stopped = False
        self.over = until(request.time_limit)

    def run(self) -> None:
        """Plan every candidate until the time is over; an interrupt keeps the rows so far."""
        for each in candidates(self.request):
            if isinstance(each, LeftOut):
                self.left_out.append(each)
                continue
            if self.stopped:
                self.left_out.append(LeftOut(each, "no time was left"))
                continue
            try:
                self._try(each)
            except CommschedError as error:
                self.left_out.append(LeftOut(each, str(error)))
            except KeyboardInterrupt:
                if not self.rows:
                    raise
                self.stopped = True
                self.left_out.append(LeftOut(each, "interrupted"))
            self.stopped = self.stopped or (
                self.over() and any(not one.refused for one in self.rows)
            )

    def _try(self, candidate: Candidate) -> None:
        """Plan a candidate unless what it only saves is not needed, or no choice may have it."""
        wanted = request_of(self.request, candidate, self.limit)
        spare = larger(candidate, dict(self.request.params))
        tried = [one.candidate for one in self.rows]
        if spare is not None and spare in tried:
            return
        strategy = STRATEGIES[candidate.strategy]
        plan = bare(wanted)
        if isinstance(strategy, PipelineStrategy) and "stages" in strategy.parameters:
            plan = staged(wanted, strategy)
            if needed(plan) > self.limit:  # before the exchanges are planned
                self.left_out.append(LeftOut(candidate, "does not fit", needed(plan)))
                return
        batches = strategy.batches(plan)
        if batches > plan.machine.size and not self.unmeasured:
            self.left_out.append(LeftOut(candidate, LONGER))
            return
        self.say(candidate.words)
        found = row(self.request, candidate, self.planner, self.limit)
        self.rows.append(replace(found, refused=found.refused or self._refused(found)))

    def _refused(self, found: Row) -> str:
        """Say why learning forbids to choose a row; empty if it does not."""
        lost = found.learning.lost
        if lost is None:
            return "" if self.unmeasured else "its cost in learning was not measured"
        return f"loses more than {self.lost:g} in learning" if lost > self.lost else ""


def _with_risks(choice: Choice) -> Choice:
    """Compute the risk of the best row of each strategy."""
    known = {id(one): risky(one) for one in choice.best}

    def told(one: Row) -> Row:
        return known.get(id(one), one)

    second = choice.runner_up
    return replace(
        choice,
        rows=tuple(map(told, choice.rows)),
        winner=told(choice.winner),
        runner_up=None if second is None else told(second),
    )


def _nothing(
    rows: Sequence[Row], left_out: Sequence[LeftOut], limit: float, lost: float
) -> CommschedError:
    """Say why no row may be chosen, and what would allow one."""
    if not rows:
        why = "; ".join(dict.fromkeys(f"{one.candidate.strategy}: {one.why}" for one in left_out))
        return CommschedError(f"no strategy has a plan within {nbytes(limit)} per rank: {why}")
    measured = [one for one in rows if one.learning.lost is not None and one.learning.lost > lost]
    best = rows[0]
    near = "--unmeasured"
    if measured:
        best = min(measured, key=lambda one: one.learning.lost or 0.0)
        near = f"--max-lost {best.learning.lost:g}"
    return CommschedError(
        f"no plan may be chosen: {best.told.words} {best.refused}; nearest: {near}"
    )
