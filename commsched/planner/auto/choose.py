"""The choice among all strategies: the fastest row that may be chosen, and why."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from commsched.errors import CommschedError
from commsched.planner.auto.candidates import LeftOut
from commsched.planner.auto.learning import may_be_chosen
from commsched.planner.auto.rows import Row, risky, runner_up
from commsched.planner.auto.search import Say, StrategySearch
from commsched.planner.request import Request
from commsched.simulate.exchange_costs import Known
from commsched.units import nbytes

LOST = 0.5  # points of accuracy, or per cent of the loss, that a choice may lose by default


@dataclass(frozen=True, kw_only=True)
class ChosenStrategy:
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
        """Return each strategy's best row among those that may be chosen, or else among all."""
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
    exhaustive: bool = False,
) -> ChosenStrategy:
    """Plan candidates within the memory; the fastest row that may be chosen wins.

    Candidates that can be neither winner nor runner-up are left out, unless `exhaustive`.
    """
    limit = request.memory or request.machine.device.memory
    wanted = replace(request, report=None, played={}, coded=may_be_chosen(lost, unmeasured))
    search = StrategySearch(wanted, planner, limit, lost, unmeasured, say, exhaustive)
    search.run()
    rows = search.rows
    legal = [one for one in rows if not one.refused]
    if not legal:
        raise _nothing(rows, search.left_out, limit, lost)
    first, second = legal[0], runner_up(legal)
    choice = ChosenStrategy(
        rows=tuple(rows),
        left_out=tuple(search.left_out),
        winner=first,
        runner_up=second,
        limit=limit,
        stopped=search.stopped,
        over=search.over(),
    )
    return choice if search.stopped else _with_risks(choice)


def _with_risks(choice: ChosenStrategy) -> ChosenStrategy:
    """Compute the risk of the best row of each strategy."""
    played: Known = {}
    known = {id(one): risky(one, played) for one in choice.best}

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
