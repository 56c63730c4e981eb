"""Spans of one rank and stream that overlap, which none may in any timeline."""

import numpy as np

from commsched.arrays import Ints
from commsched.timeline.intervals import Intervals
from commsched.timeline.model import Span, Timeline


def overlaps(t: Timeline, tolerance: float = 1e-9) -> list[tuple[Span, Span]]:
    """Return the pairs of spans of one rank and stream that overlap by more than `tolerance` s.

    Each span is paired with the latest-ending one before it; no pair means that none overlap.
    """
    lane = t.rank.astype(np.int64) * max(len(t.streams), 1) + t.stream
    earlier, later = _latest_before(Intervals(lane, t.start, t.end))
    bad = t.start[later] < t.end[earlier] - tolerance
    pairs = zip(earlier[bad].tolist(), later[bad].tolist(), strict=True)
    return [(t.span(i), t.span(j)) for i, j in pairs]


def _latest_before(a: Intervals) -> tuple[Ints, Ints]:
    """Pair each interval with the earlier interval of its group that ends last.

    Returns (earlier, later), indices into the columns of `a`; the first of a group has no pair.
    """
    n = len(a.group)
    order = np.lexsort((a.end, a.start, a.group))
    group, end = a.group[order], a.end[order]
    by_end = np.argsort(end, kind="stable")
    place = np.empty(n, np.int64)
    place[by_end] = np.arange(n)
    changed = np.concatenate(([False], group[1:] != group[:-1]))[:n]
    # whole numbers instead of times: a running maximum that restarts with each group, exactly
    running = np.maximum.accumulate(np.cumsum(changed) * n + place)
    latest = by_end[running % max(n, 1)]
    later = np.flatnonzero(~changed[1:]) + 1
    return order[latest[later - 1]], order[later]
