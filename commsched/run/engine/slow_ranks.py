"""The search for the rank for which others wait longer than usual, from all ranks' reports."""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf
from statistics import fmean, median, median_low
from typing import NamedTuple

import msgspec

from commsched.units import seconds

TIMES = 3.0  # times the usual waiting beyond which a rank is named
LEAST = 0.1  # s of waiting per other second; lower usual values are raised to this
PARTS = 4  # of a window: the waiting must exceed its limit in each, so a hiccup is no alarm
STEPS = 1.5  # least steps in a part of a window
LEARN, REMEMBERED = 3, 60  # windows until a rank's usual share is known; windows in its mean


class Report(msgspec.Struct, frozen=True, array_like=True):
    """The waiting of one rank since its start."""

    waited: float  # s that its computation has waited for other ranks
    seen: float  # s
    step: int
    name: str  # last operation that it waited for


class Slow(NamedTuple):
    """A rank that makes the others wait; a share is their longer waiting as a fraction of time."""

    rank: int
    share: float
    usual: float | None  # None: not known yet
    window: float  # s
    step: int
    name: str  # operation that they wait for
    silent: bool

    def __str__(self) -> str:
        usual = "" if self.usual is None else f", usually {self.usual:.0%}"
        silent = "; it does not answer" if self.silent else ""
        return (
            f"rank {self.rank} makes the others wait for {self.name} in step {self.step}:"
            f" {self.share:.0%} of the last {seconds(self.window)}{usual}{silent}"
        )


class SlowRanks:
    """A judge of some ranks, which compares shares of time, so that clocks need not agree.

    A rank is named once the others have waited longer than that rank for a whole `window` [s], and
    more than TIMES as long as usual per second without waiting.
    """

    def __init__(self, ranks: int, judged: Iterable[int], window: float) -> None:
        self._judged, self._window = list(judged), window
        self._reports = [deque[tuple[float, Report]]() for _ in range(ranks)]  # with arrivals
        self._usual = {rank: deque[float](maxlen=REMEMBERED) for rank in self._judged}
        self._learnt = dict.fromkeys(self._judged, -inf)
        self._named: set[int] = set()
        self._advanced = (0.0, -1)  # when, step
        self._paces = deque[float](maxlen=REMEMBERED)  # s per step

    def take(self, rank: int, report: Report, when: float) -> None:
        """Take a report that arrives at `when`, in s."""
        self._reports[rank].append((when, report))
        before, step = self._advanced
        if report.step > step:
            if step >= 0:
                self._paces.append((when - before) / (report.step - step))
            self._advanced = when, report.step

    def judge(self, when: float) -> list[Slow]:
        """Return the ranks that have become slow."""
        window = max(self._window, PARTS * STEPS * median(self._paces or [0.0]))
        for kept in self._reports:
            while len(kept) > 1 and kept[1][0] <= when - window:
                kept.popleft()
        if not any(kept and kept[0][0] <= when - window for kept in self._reports):
            return []
        edges = [when - window * part / PARTS for part in range(PARTS, -1, -1)]
        parts = [self._shares(*ends) for ends in pairwise(edges)]
        whole = self._shares(edges[0], when)
        found = []
        for rank in self._judged:
            silent = parts[-1][rank] is None
            limit = self._limit(rank, silent)
            slow = all(_rate(_excess(rank, part)) > limit for part in parts)
            share = _excess(rank, whole)
            if slow and rank not in self._named:
                self._named.add(rank)
                found.append(self._slow(rank, share, window, silent))
            elif not slow and when - self._learnt[rank] >= window:
                self._named.discard(rank)
                self._usual[rank].append(share)
            if slow or when - self._learnt[rank] >= window:
                self._learnt[rank] = when  # also after a slow window, which does not count as usual
        return found

    def _shares(self, start: float, stop: float) -> list[float | None]:
        """Return each rank's waiting between two moments; None for a rank without a report."""
        found: list[float | None] = []
        for kept in self._reports:
            first, last = (_before(edge, kept) for edge in (start, stop))
            if first is None or last is None or last.seen <= first.seen:
                found.append(None)
            else:
                found.append((last.waited - first.waited) / (last.seen - first.seen))
        return found

    def _limit(self, rank: int, silent: bool) -> float:
        """Return the waiting per other second beyond which a rank is slow."""
        usual = self._usual[rank]
        if len(usual) < LEARN:
            return TIMES * LEAST if silent else inf
        return TIMES * max(LEAST, _rate(fmean(usual)))

    def _slow(self, rank: int, share: float, window: float, silent: bool) -> Slow:
        others = [kept[-1][1] for i, kept in enumerate(self._reports) if i != rank and kept]
        names = Counter(report.name for report in others if report.name)
        name = names.most_common(1)[0][0] if names else "its messages"
        usual = self._usual[rank]
        known = fmean(usual) if len(usual) >= LEARN else None
        step = max(report.step for report in others)
        return Slow(rank, share, known, window, step, name, silent)


def _before(when: float, kept: Iterable[tuple[float, Report]]) -> Report | None:
    """Return the last report that has arrived by a moment, if any."""
    return next((report for arrived, report in reversed([*kept]) if arrived <= when), None)


def _excess(rank: int, shares: Sequence[float | None]) -> float:
    """Return the share of time by which at least half of the others wait longer than a rank."""
    others = [share for i, share in enumerate(shares) if i != rank and share is not None]
    return max(0.0, median_low(others) - (shares[rank] or 0.0)) if others else 0.0


def _rate(share: float) -> float:
    """Return the waiting per other second."""
    return share / (1 - share) if share < 1 else inf
