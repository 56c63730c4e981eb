"""What must hold of a search among strategies that leaves candidates out."""

from math import inf

from commsched.planner.auto.choose import choose
from commsched.planner.auto.floor import floor
from commsched.planner.auto.reasons import left_out
from commsched.planner.auto.rows import outline, request_of
from commsched.planner.auto.search import HIDDEN, SLOWER
from commsched.planner.request import Request


def check_floors(request: Request, **more: object) -> None:
    """No floor is above the time that an exhaustive search simulates, and both choose the same."""
    every, quick = (
        choose(request, "ddp-25mb", exhaustive=exhaustive, **more)  # type: ignore[arg-type]
        for exhaustive in (True, False)
    )
    times = {row.candidate.words: row.time for row in every.rows}
    assert every.runner_up is not None
    assert quick.runner_up is not None
    assert quick.winner.candidate == every.winner.candidate
    assert quick.runner_up.candidate == every.runner_up.candidate
    assert {row.candidate.words for row in quick.rows} <= times.keys()
    for row in every.rows:
        wanted = request_of(request, row.candidate, every.limit)
        assert 0.0 <= floor(outline(wanted)) <= row.time * row.batches / row.plan.machine.size
    found = {one.candidate.strategy: one for one in every.best}
    for one in quick.best:
        if one.time <= quick.runner_up.time:
            assert one.candidate == found[one.candidate.strategy].candidate
    beaten = [one for one in quick.left_out if one.floor and one.why == SLOWER]
    for one in beaten:
        assert quick.runner_up.time < one.floor <= times.get(one.candidate.words, inf)
    for one in quick.left_out:
        if one.why == HIDDEN:
            own = (r.time for r in quick.rows if r.candidate.strategy == one.candidate.strategy)
            assert min(own) < one.floor <= times.get(one.candidate.words, inf)
    told = [line for line in left_out(quick) if "above the runner-up" in line]
    assert len(told) == bool(beaten)
