"""The bandwidth at which compressing stops to pay: plans at many rates of a node's port."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import sqrt
from typing import Any, NamedTuple

from commsched.errors import CommschedError, TooLittleTime
from commsched.machine.change import changed
from commsched.machine.ports import Reach, reach
from commsched.planner.families import lossy, plan_with_verdict
from commsched.planner.request import Request
from commsched.text_table import table
from commsched.units import bits, seconds, significant

LEAST, MOST = 1e7 / 8, 1e13 / 8  # B/s of a port, the rates that are looked at
NEAR = 1.05  # ratio of the rates between which the answer lies, at the end
RATES = 20  # at which plans are made, about

Progress = Callable[[str], None]


class RateRow(NamedTuple):
    """The best plans at one rate of a port, iterations in s."""

    port: float  # B/s
    exact: float  # lossless
    allowed: float  # with what the request allows

    @property
    def saved(self) -> float:
        """The share of the lossless iteration that compressing saves."""
        return 1 - self.allowed / self.exact


class BreakEven(NamedTuple):
    """Where compressing stops to save `gain` of an iteration, and the plans looked at."""

    codecs: tuple[str, ...]
    gain: float
    port: float | None  # B/s; None: it saves less, or more, at every rate
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

    The rate doubles or halves from the machine's own until the answer is between two rates, which
    are then halved in turn. Iterations at each rate are those of `plan`; `time_limit` is for all
    together. Raises TooLittleTime if it ends before there is a plan at some rate.
    """
    found = check_break_even(request)
    if request.time_limit is not None:
        request = replace(request, time_limit=request.time_limit / RATES)
    rows: dict[float, RateRow] = {}

    def saves(port: float) -> bool:
        if say is not None:
            say(f"plans at {bits(port)}")
        rows[port] = _row(request, port)
        return rows[port].saved > gain

    port = found.per_node / (found.ports or 1)
    paid = saves(port)
    for other in _outwards(port, 2.0 if paid else 0.5):
        before, port = port, other
        if saves(port) != paid:
            break
    else:
        return BreakEven(lossy(request), gain, None, tuple(sorted(rows.values())))
    low, high = sorted((before, port))
    while high / low > NEAR:
        middle = sqrt(low * high)
        low, high = (middle, high) if saves(middle) else (low, middle)
    return BreakEven(lossy(request), gain, sqrt(low * high), tuple(sorted(rows.values())))


def check_break_even(request: Request) -> Reach:
    """Refuse a request without lossy codecs or without ports; return the rates of its machine."""
    if not lossy(request):
        raise CommschedError("--break-even needs --allow: lossy codecs whose gain is looked at")
    found = reach(request.machine)
    if found is None:
        raise CommschedError("--break-even needs a machine of several nodes, which have ports")
    return found


def _outwards(port: float, factor: float) -> Iterator[float]:
    while LEAST <= port * factor <= MOST:
        port *= factor
        yield port


def _row(request: Request, port: float) -> RateRow:
    """Plan at a rate of the port; wider families never have slower plans."""
    on = changed(request.machine, [f"nic={8 * port:.6g} bit/s"])
    plan, interrupted = plan_with_verdict(replace(request, machine=on, report=None))
    if interrupted:
        raise KeyboardInterrupt
    iterations = {one.family: one.iteration for one in plan.alternatives}
    exact = [iterations[name] for name in ("dense", "lossless") if name in iterations]
    if not exact:
        raise TooLittleTime("--break-even: no plans were compared within --time-limit; give more")
    return RateRow(port, min(exact), min([*exact, iterations.get("allowed", exact[0])]))
