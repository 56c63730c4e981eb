"""The codec of a pipeline's messages, chosen if a request leaves it open and allows losses."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from commsched.coding.registry import CODECS
from commsched.exchange.registry import lossy_name
from commsched.plan.model import Plan
from commsched.planner.reasons.verdict import NOTHING
from commsched.planner.request import Request
from commsched.planner.search.timing import iteration
from commsched.program.message_coding import AS_THEY_ARE, NAMES, coding_of
from commsched.program.stages import Stage, grid
from commsched.simulate.pipelines import message_seconds

KEY = "messages"  # the parameter of pipelines


def with_codec(request: Request, plan: Plan) -> Plan:
    """Give a plan without launches the codec whose messages take the least time.

    The time is that to encode, send and decode a microbatch's messages, over all cuts and in both
    directions. Messages stay uncoded unless a codec takes less.
    """
    found = [plan, *_allowed(request, plan)]
    if len(found) == 1:
        return plan
    stages = grid(plan, plan.params)
    return min(found, key=lambda each: _on_the_way(each, stages))


def timed(request: Request, plan: Plan) -> Plan:
    """Return a plan with its iteration; leave messages uncoded if their codec saves nothing."""
    plan = replace(plan, iteration=iteration(plan))
    if KEY in request.params or plan.params.get(KEY, AS_THEY_ARE) == AS_THEY_ARE:
        return plan
    plain = _coded(plan, AS_THEY_ARE)
    plain = replace(plain, iteration=iteration(plain))
    helps = plan.iteration * (1 + NOTHING) < plain.iteration
    return plan if helps else plain


def _coded(plan: Plan, name: str) -> Plan:
    return replace(plan, params={**plan.params, KEY: name})


def _allowed(request: Request, plan: Plan) -> Iterator[Plan]:
    """Yield the plan with each lossy codec that its messages may have."""
    if KEY in request.params or KEY not in plan.params:
        return
    wanted = {lossy_name(name) for name in request.messages}
    for name in NAMES:
        each = _coded(plan, name)
        if CODECS[name].name in wanted and (request.coded is None or request.coded(each)):
            yield each


def _on_the_way(plan: Plan, stages: tuple[Stage, ...]) -> float:
    """Return the s to encode, send and decode a microbatch's messages over all cuts, both ways."""
    coding, found = coding_of(plan), 0.0
    for before, after in pairwise(stages):
        coded = coding.of(before.output)
        for source, to in ((before, after), (after, before)):
            busy, _ = message_seconds(plan.machine, source.ranks, to.ranks, coded.nbytes)
            found += coded.encode + float(busy.max()) + coded.decode
    return found
