"""The row of a candidate's plan: time, bytes, memory, cost in learning, and risk."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from commsched.errors import CommschedError
from commsched.machine.slowed_links import slower
from commsched.plan.model import Plan
from commsched.planner.auto.candidates import StrategyCandidate
from commsched.planner.auto.learning import NOT_MEASURED, LearningCost, cost, lossy_codecs
from commsched.planner.families import NO_PLAN, plan_with_verdict
from commsched.planner.limits.memory import needed, refusal
from commsched.planner.message_codecs import KEY
from commsched.planner.registry import FRAMES, OUTLINES
from commsched.planner.request import Request
from commsched.program.message_coding import AS_THEY_ARE
from commsched.program.registry import STRATEGIES
from commsched.simulate.engine import simulate
from commsched.simulate.exchange_costs import Known
from commsched.simulate.step_count import cycle_of, usual_steps
from commsched.timeline.totals import median

SHARE = 0.8  # of the links' rates that a row's risk assumes


class Times(NamedTuple):
    """The seconds of a step and the bytes sent, as means over the training's periods and ranks."""

    step: float
    exposed: float  # communication while a rank does not compute
    bubble: float  # nothing runs
    sent: float  # B

    @property
    def busy(self) -> float:
        """Return the seconds of the rest: computing, updating, coding."""
        return max(self.step - self.exposed - self.bubble, 0.0)

    def scaled(self, factor: float) -> "Times":
        """Return the times multiplied by a factor."""
        return Times(*(value * factor for value in self))


@dataclass(frozen=True, kw_only=True)
class Row:
    """A candidate with its plan; `times` are for as many batches as there are ranks."""

    candidate: StrategyCandidate
    plan: Plan
    times: Times
    batches: int  # in a step
    memory: float  # B on the rank that needs most
    learning: LearningCost
    refused: str = ""  # why it must not be chosen
    risk: float | None = None  # share that the time grows by with slower links; None: not computed

    @property
    def told(self) -> StrategyCandidate:
        """Return the candidate; add the codec of messages if the plan chose one."""
        name = str(self.plan.params.get(KEY, AS_THEY_ARE))
        if KEY in self.candidate.params or name == AS_THEY_ARE:
            return self.candidate
        return self.candidate._replace(params={**self.candidate.params, KEY: name})

    @property
    def time(self) -> float:
        """Return the s in which all ranks together compute as many batches as there are ranks."""
        return self.times.step


def runner_up(legal: Sequence[Row]) -> Row | None:
    """Return the best row of another strategy than the winner's, or else of other parameters."""
    first, *others = legal
    apart = (one for one in others if one.candidate.strategy != first.candidate.strategy)
    return next(apart, others[0] if others else None)


def request_of(request: Request, candidate: StrategyCandidate, limit: float) -> Request:
    """Return the request of a candidate; with an error budget, only `sync` may use lossy codecs."""
    found = replace(
        request, strategy=candidate.strategy, params=dict(candidate.params), memory=limit
    )
    if request.max_error is None or candidate.strategy not in FRAMES:
        return found
    return replace(found, max_error=None, small=False, recorded=None, lossy=(), messages=())


def outline(request: Request) -> Plan:
    """Return a request's plan without its launches, for questions that need none."""
    if request.strategy in OUTLINES:
        return OUTLINES[request.strategy](request)
    return request.plan()


def row(request: Request, candidate: StrategyCandidate, planner: str, limit: float) -> Row:
    """Plan and simulate a candidate; refuse one that does not fit into `limit` B per rank."""
    wanted = request_of(request, candidate, limit)
    made = plan_with_verdict(wanted, planner)
    if made.interrupted:
        raise KeyboardInterrupt(NO_PLAN)
    plan, memory = made.plan, needed(made.plan)
    if memory > limit:
        raise refusal(wanted, plan)
    batches = STRATEGIES[plan.strategy].batches(plan)
    return Row(
        candidate=candidate,
        plan=plan,
        times=times(plan, request.played).scaled(plan.machine.size / batches),
        batches=batches,
        memory=memory,
        learning=learning(plan, batches),
        refused=_over_budget(request, plan),
    )


def learning(plan: Plan, batches: int) -> LearningCost:
    """Look up the cost in learning, which is unknown for other numbers of batches than ranks."""
    if batches == plan.machine.size:
        return cost(plan)
    return LearningCost(
        None, f"{NOT_MEASURED} with {batches} instead of {plan.machine.size} batches a step"
    )


def _over_budget(request: Request, plan: Plan) -> str:
    """Say which codecs of a plan no error budget covers; empty if all are covered."""
    codecs = lossy_codecs(plan)
    if request.max_error is None or plan.strategy not in FRAMES or not codecs:
        return ""
    return f"sends by {', '.join(codecs)}, which --max-error does not measure under it"


def times(plan: Plan, known: Known | None = None) -> Times:
    """Simulate every period of a plan's training, and weigh them by their shares.

    known: exchanges of other plans on the same machine.
    """
    known = {} if known is None else known
    periods = STRATEGIES[plan.strategy].periods(plan)
    found = [_simulated(part, known).scaled(share) for share, part in periods]
    return Times(*map(sum, zip(*found, strict=True)))


def steps_of(plan: Plan) -> int:
    """Count the steps that a row simulates: those of a prediction; few if ranks are even."""
    if not plan.machine.even:
        return 1 + usual_steps(plan)
    alike, cycle = STRATEGIES[plan.strategy].sums_every_step, cycle_of(plan)
    return 3 if alike and cycle == 1 else 2 + 2 * cycle


def _simulated(plan: Plan, known: Known) -> Times:
    totals = simulate(plan, steps_of(plan), known=known).totals
    values = (totals.iteration, totals.exposed, totals.bubble, totals.sent)
    return Times(*(median(each) or 0.0 for each in values))


def risky(row: Row, known: Known) -> Row:
    """Return a row with its risk: the time's growth on links at SHARE of their rates.

    known: exchanges of other plans on those links.
    """
    machine = slower(row.plan.machine, SHARE)
    try:
        later = times(replace(row.plan, machine=machine), known)
    except CommschedError:  # a plan whose groups no longer fit
        return row
    grown = later.step * row.plan.machine.size / row.batches
    return replace(row, risk=max(grown / row.time - 1.0, 0.0))
