"""Print what `plan --strategy auto` compared and chose."""

from typing import Any

from commsched.planner.auto.choose import ChosenStrategy
from commsched.planner.auto.reasons import left_out, reasons
from commsched.planner.auto.rows import SHARE, Row
from commsched.text_table import table
from commsched.units import count, nbytes, seconds

AUTO = "auto"  # --strategy auto compares all strategies
HEADER = (
    "strategy",
    "time",
    "exposed",
    "bubble",
    "memory per rank",
    "sent per rank",
    f"links at {SHARE:.0%}",
    "cost in learning",
    "verdict",
)
RIGHT = {1, 2, 3, 4, 5, 6}


def lines(choice: ChosenStrategy, every: bool) -> list[str]:
    """Return the table of the best row of each strategy, or of all rows, and the reasons."""
    rows = choice.rows if every else choice.best
    ranks = choice.winner.plan.machine.size
    known = any(layer.activation for layer in choice.winner.plan.net.layers)
    without = "" if known else ", without activations, which the net does not state"
    return [
        f"{count(len(choice.rows), 'plan')} within {nbytes(choice.limit)} per rank{without}; time"
        f" and bytes are those of as many batches as there are ranks, {ranks}",
        table(HEADER, [_row(choice, one) for one in rows], RIGHT),
        *reasons(choice),
        *left_out(choice),
    ]


def _row(choice: ChosenStrategy, one: Row) -> tuple[str, ...]:
    times = one.times
    return (
        one.told.words,
        seconds(one.time),
        seconds(times.exposed),
        seconds(times.bubble) if times.bubble else "-",
        nbytes(one.memory),
        nbytes(times.sent),
        "-" if one.risk is None else f"{one.risk:+.1%}",
        str(one.learning),
        _verdict(choice, one),
    )


def _verdict(choice: ChosenStrategy, one: Row) -> str:
    if one is choice.winner:
        return "chosen"
    return "runner-up" if one is choice.runner_up else one.refused or "slower"


def data(choice: ChosenStrategy) -> dict[str, Any]:
    """Return all rows and the reasons as JSON data, in s and B."""
    return {
        "rows": [_data(choice, one) for one in choice.rows],
        "reasons": reasons(choice),
        "left_out": [
            {"strategy": one.candidate.strategy, "params": one.candidate.params, "why": one.why}
            for one in choice.left_out
        ],
        "memory_limit_bytes": choice.limit,
        "complete": not choice.stopped,
    }


def _data(choice: ChosenStrategy, one: Row) -> dict[str, Any]:
    times = one.times
    return {
        "strategy": one.candidate.strategy,
        "params": one.told.params,
        "time_seconds": one.time,
        "step_seconds": one.time * one.batches / one.plan.machine.size,
        "batches": one.batches,
        "exposed_seconds": times.exposed,
        "bubble_seconds": times.bubble,
        "sent_bytes": times.sent,
        "memory_bytes_per_rank": one.memory,
        "lost_in_learning": one.learning.lost,
        "cost_in_learning": str(one.learning),
        "slower_links_share": one.risk,
        "verdict": _verdict(choice, one),
    }
