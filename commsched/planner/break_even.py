"""The bandwidth from which compression no longer pays, found by plans at many port rates."""

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import sqrt
from operator import attrgetter
from typing import Any, NamedTuple

from commsched.errors import CommschedError, TooLittleTime
from commsched.machine.change import changed
from commsched.machine.model import Machine
from commsched.machine.ports import Reach, reach
from commsched.plan.model import Plan
from commsched.planner.families import lossy, plan_with_verdict, without_losses
from commsched.planner.registry import FRAMES
from commsched.planner.request import Request
from commsched.planner.search.timing import iteration
from commsched.text_table import table
from commsched.units import bits, seconds, significant

LEAST, MOST = 1e7 / 8, 1e13 / 8  # B/s of a port: the range of rates that is searched
NEAR = 1.05  # the search ends when the rates around the answer differ by this ratio
RATES = 20  # rates at which plans are made, about

LENGTH = attrgetter("iteration")

Progress = Callable[[str], None]


class RateRow(NamedTuple):
    """The best plans at one rate of a port, iterations in s."""

    port: float  # B/s
    exact: float  # lossless
    allowed: float  # with what the request allows

    @property
    def saved(self) -> float:
        """Return the share of the lossless iteration that compressing saves."""
        return 1 - self.allowed / self.exact


class _Best(NamedTuple):
    """The best plans at one rate of a port."""

    exact: Plan
    allowed: Plan


class BreakEven(NamedTuple):
    """The rate at which compression stops saving `gain` of an iteration, and the plans compared."""

    codecs: tuple[str, ...]
    gain: float
    port: float | None  # B/s; None: compression saves less, or more, at every rate
    rows: tuple[RateRow, ...]  # by rate

    def sentence(self) -> str:
        """Answer in one sentence."""
        codecs, share = ", ".join(self.codecs), f"{self.gain:.1%} of an iteration"
        first, last = bits(self.rows[0].port), bits(self.rows[-1].port)
        if self.port is not None:
            return f"{codecs}: saves less than {share} from {bits(self.port)} per port on"
        less = self.rows[0].saved <= self.gain
        how = "less" if less else "more"
        return f"{codecs}: saves {how} than {share} at every rate from {first} to {last} per port"

    def lines(self) -> list[str]:
        """Return the table of plans by rate, and the answer."""
        cells = [
            (bits(row.port), seconds(row.exact), seconds(row.allowed), f"{row.saved:.1%}")
            for row in self.rows
        ]
        header = ("port", "lossless", f"with {', '.join(self.codecs)}", "saved")
        return [table(header, cells, range(1, 4)), self.sentence()]

    def data(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "codecs": list(self.codecs),
            "gain_share": self.gain,
            "port_bits_per_second": None if self.port is None else significant(8 * self.port),
            "rows": [
                {
                    "port_bits_per_second": significant(8 * row.port),
                    "lossless_seconds": row.exact,
                    "allowed_seconds": row.allowed,
                    "saved_share": row.saved,
                }
                for row in self.rows
            ],
        }


def break_even(request: Request, gain: float = 0.01, say: Progress | None = None) -> BreakEven:
    """Find the port at which the allowed codecs save `gain` of the best lossless iteration.

    The search doubles or halves the machine's own rate until two rates enclose the answer, and then
    halves the gap between them. The iteration at a rate is that of the plan made for it, or of a
    plan for a slower rate if that is faster there. `time_limit` holds for all plans together; if it
    ends before a rate has a plan, TooLittleTime is raised.
    """
    found = check_break_even(request)
    if request.time_limit is not None:
        request = replace(request, time_limit=request.time_limit / RATES)
    rates: dict[float, _Best] = {}
    port: float | None = found.per_node / (found.ports or 1)
    while port is not None:
        if say is not None:
            say(f"plans at {bits(port)}")
        near = _neighbours(sorted(rates), port)
        rates[port] = _plans(request, port, [plan for rate in near for plan in rates[rate]])
        _carry(request, rates, port)
        rows = [_row(port, rates[port]) for port in sorted(rates)]
        port, answer = _next(rows, gain)
    return BreakEven(lossy(request), gain, answer, tuple(rows))


def check_break_even(request: Request) -> Reach:
    """Refuse a request that has no plans to compare; return the rates of its machine."""
    if request.strategy in {"auto", *FRAMES}:
        raise CommschedError(
            f"--break-even compares codecs; strategy {request.strategy!r} chooses its own:"
            " leave --break-even out"
        )
    if not lossy(request):
        raise CommschedError("--break-even needs --allow: lossy codecs whose gain is looked at")
    if not list(without_losses(request).methods(request.machine.everyone)):
        raise CommschedError(
            "--break-even compares with the best lossless plan, and --method names lossy methods"
            " only; nearest: --method ring+dense besides"
        )
    found = reach(request.machine)
    if found is None:
        raise CommschedError("--break-even needs a machine of several nodes, which have ports")
    return found


def _next(rows: Sequence[RateRow], gain: float) -> tuple[float | None, float | None]:
    """Return the next rate to try, or None and the answer; `rows` are ordered by rate."""
    paid = [place for place, row in enumerate(rows) if row.saved > gain]
    if not paid:
        lower = rows[0].port / 2
        return (lower, None) if lower >= LEAST else (None, None)
    if paid[-1] == len(rows) - 1:
        higher = rows[-1].port * 2
        return (higher, None) if higher <= MOST else (None, None)
    low, high = rows[paid[-1]].port, rows[paid[-1] + 1].port
    middle = sqrt(low * high)
    return (middle, None) if high / low > NEAR else (None, middle)


def _neighbours(rates: Sequence[float], port: float) -> Sequence[float]:
    """Return the rates just below and above a port's."""
    place = bisect(rates, port)
    return rates[max(place - 1, 0) : place + 1]


def _plans(request: Request, port: float, others: Sequence[Plan]) -> _Best:
    """Plan at one rate of the port; also compare the plans of other rates at this rate."""
    on = _machine(request, port)
    moved = [replace(plan, machine=on, alternatives=()) for plan in dict.fromkeys(others)]
    found = plan_with_verdict(replace(request, machine=on, report=None), others=moved)
    if found.interrupted:
        raise KeyboardInterrupt
    exact = [found.best[name] for name in ("dense", "lossless") if name in found.best]
    if not exact:
        raise TooLittleTime("--break-even: no plans were compared within --time-limit; give more")
    least = min(exact, key=LENGTH)
    return _Best(least, min(least, found.best.get("allowed", least), key=LENGTH))


def _carry(request: Request, rates: dict[float, _Best], port: float) -> None:
    """Take over a port's plan at the next faster ports, as long as it is the best there."""
    for slow, fast in pairwise(rate for rate in sorted(rates) if rate >= port):
        on = _machine(request, fast)
        moved = (replace(plan, machine=on, alternatives=()) for plan in rates[slow])
        priced = (replace(plan, iteration=iteration(plan)) for plan in moved)
        best = _Best(*(min(pair, key=LENGTH) for pair in zip(rates[fast], priced, strict=True)))
        if best == rates[fast]:
            return
        rates[fast] = best


def _machine(request: Request, port: float) -> Machine:
    return changed(request.machine, [f"nic={8 * port:.6g} bit/s"])


def _row(port: float, best: _Best) -> RateRow:
    return RateRow(port, best.exact.iteration, best.allowed.iteration)
