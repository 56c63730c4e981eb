"""The reproduction of a paper: published and predicted numbers, and trends they must show."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from commsched import files
from commsched.registry import Registry
from commsched.units import count

PUBLISHED_ONLY = "published only: nothing here predicts it"
CAUSES = 2  # most causes that a verdict names
RESULT = 0.15  # bar of every published result: times, speed-ups, shares, measured sizes
FORMULA = 0.01  # bar of a printed formula's value, and of our derivations


class Otherwise(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An input that the paper does not state, and the prediction under its alternative."""

    inferred: str  # our input, and the reason
    instead: str
    predicted: float | None = None  # in the row's unit; None: not computed, `instead` says why


class PublishedRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number that the paper prints, or one that we derive from it, beside the library's."""

    group: str  # of rows that belong together and have one unit
    what: str
    inputs: str
    unit: str  # "" for a plain number
    published: float | None = None  # printed in the paper; None: not available, or not printed
    derived: float | None = None  # by the paper's formulas; only if `published` is None
    predicted: float | None = None  # None: `note` says why
    bar: float = RESULT  # relative error that must not be exceeded
    inferred: tuple[Otherwise, ...] = ()
    note: str = ""
    cause: str = ""  # of a missed bar, in one line
    measured: bool = False  # the prediction is a time measured in this call

    @property
    def wanted(self) -> float | None:
        """Return the number to compare with: the published or the derived one."""
        return self.derived if self.published is None else self.published

    @property
    def error(self) -> float | None:
        """Return the relative error, positive if the prediction is too high, or None."""
        if not self.wanted or self.predicted is None:
            return None
        return self.predicted / self.wanted - 1.0

    @property
    def met(self) -> bool:
        """Tell whether the row's bar holds; True if there is nothing to compare.

        A time measured on this processor has no bar, because the paper used another processor.
        """
        return self.measured or self.error is None or abs(self.error) <= self.bar

    @property
    def is_result(self) -> bool:
        """Tell whether the row compares a result that the paper prints."""
        compared = self.published is not None and self.error is not None
        return compared and self.bar > FORMULA and not self.measured


class Trend(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An order or a limit that the published numbers obey, and whether ours obey it."""

    what: str
    shown: str  # our numbers
    met: bool
    required: bool = True  # False: reported only


class Reproduction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All rows and trends of a paper."""

    format: Literal["commsched-reproduction/2"] = "commsched-reproduction/2"
    name: str
    source: str
    rows: tuple[PublishedRow, ...]
    trends: tuple[Trend, ...]

    @property
    def met(self) -> bool:
        """Tell whether all bars and required trends hold."""
        return all(row.met for row in self.rows) and all(
            trend.met or not trend.required for trend in self.trends
        )

    @property
    def verdict(self) -> str:
        """Say in one line whether the published results are reproduced, or why not."""
        results = [row for row in self.rows if row.is_result]
        if not results:
            return f"no verdict: no result could be compared{self._orders}"
        missed = [row for row in results if not row.met]
        if not missed:
            worst = max(abs(row.error or 0.0) for row in results)
            return f"reproduced: {len(results)} results within {math.ceil(100 * worst - 1e-9)}%"
        causes = Counter(row.cause for row in missed).most_common()
        several = len(causes) > 1
        said = "; ".join(
            f"{f'{number} ' if several else ''}because {cause}" for cause, number in causes[:CAUSES]
        )
        more = f"; {count(len(causes) - CAUSES, 'more cause')}" if len(causes) > CAUSES else ""
        within = len(results) - len(missed)
        return (
            f"{within} of {len(results)} results within {RESULT:.0%}, {len(missed)} refuted"
            f"{':' if several else ''} {said}{more}"
        )

    @property
    def _orders(self) -> str:
        required = [trend for trend in self.trends if trend.required]
        met = sum(trend.met for trend in required)
        return f"; {met} of {len(required)} orders and limits hold" if required else ""


def _no_trends(rows: Sequence[PublishedRow]) -> Iterable[Trend]:
    return ()


class Paper(NamedTuple):
    """The source of the published numbers, and the functions that compute rows and trends."""

    source: str
    rows: Callable[[], Iterable[PublishedRow]]
    trends: Callable[[Sequence[PublishedRow]], Iterable[Trend]] = _no_trends


PAPERS: Registry[Paper] = Registry("paper", "commsched.lab.reproduce.papers")


def reproduce(name: str) -> Reproduction:
    """Predict every published number of a paper."""
    paper = PAPERS[name]
    rows = tuple(paper.rows())
    trends = tuple(paper.trends(rows))
    return Reproduction(name=name, source=paper.source, rows=rows, trends=trends)


def read(path: Path) -> Reproduction:
    """Read a reproduction's file; raise CommschedError for any other file."""
    return files.read(path, Reproduction)


def write(path: Path, found: Reproduction) -> None:
    """Write rows and trends as JSON."""
    files.write(path, msgspec.to_builtins(found))


def missing(what: str, inputs: str) -> PublishedRow:
    """Return a row for a number of the paper that was not available to us."""
    return PublishedRow(
        group="other results",
        what=what,
        inputs=inputs,
        unit="",
        note="its numbers were not available to us, so that there is nothing to compare",
    )


def predictions(rows: Sequence[PublishedRow], group: str, what: str = "") -> list[float]:
    """Return the predictions of a group, in order; of rows whose `what` begins with a word."""
    return [
        row.predicted
        for row in rows
        if row.group == group and row.what.startswith(what) and row.predicted is not None
    ]


def falling(what: str, values: Sequence[float], unit: str) -> Trend:
    """Return the trend that each value is below the previous one."""
    met = len(values) > 1 and all(b < a for a, b in pairwise(values))
    shown = " > ".join(f"{value:.3g}" for value in values)
    return Trend(what=what, shown=f"{shown} {unit}".rstrip(), met=met)


def below(what: str, value: float, limit: float, unit: str = "", *, required: bool = True) -> Trend:
    """Return the trend that a value is below a limit."""
    shown = f"{value:.4g} {unit}".rstrip()
    return Trend(what=what, shown=shown, met=value < limit, required=required)


def root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the sign change of a function between two positive numbers, by bisection to 1e-12."""
    below_zero = function(low) < 0
    assert below_zero != (function(high) < 0), "no change of sign"
    for _ in range(200):
        middle = math.sqrt(low * high)
        if high - low <= 1e-12 * high:
            break
        if (function(middle) < 0) == below_zero:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def crossing(more: Callable[[int], float], most: int = 1024) -> float:
    """Return the number, at least 2, at which `more` rises to 0, interpolated between integers."""
    before = more(2)
    for number in range(3, most + 1):
        now = more(number)
        if before < 0 <= now:
            return number - now / (now - before)
        before = now
    raise AssertionError(f"no crossing up to {most}")
