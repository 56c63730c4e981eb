"""Choose what a picture of a timeline shows: one step, at most eight ranks, one time axis."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from commsched.errors import CommschedError
from commsched.timeline import measure
from commsched.timeline.intervals import Intervals, intersection
from commsched.timeline.model import Timeline

MOST_RANKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One step of one timeline; times count from the step's first start on any rank."""

    kind: str
    step: int
    spans: Timeline  # cut to the step: other steps' spans only where they reach into it
    length: float  # s
    exposed: Intervals  # s, by rank


def view(t: Timeline, step: int) -> View:
    """Cut a timeline to `step`: from its start until its last span, often an exchange, ends."""
    assert step in measure.steps(t)
    column = int(np.searchsorted(measure.steps(t), step))
    origin = float(np.nanmin(measure.step_starts(t)[:, column]))
    stop = max(float(t.end[t.step == step].max()), origin)
    found = measure.exposed_intervals(t)
    seen = measure.ranks_seen(t).astype(np.int64)
    whole = Intervals(seen, np.full(len(seen), origin), np.full(len(seen), stop))
    cut = intersection(found, whole)
    spans = t.select((t.end >= origin) & (t.start <= stop) & ((t.step == step) | (t.end > origin)))
    return View(
        kind=t.kind,
        step=step,
        spans=_moved(spans, origin, stop),
        length=stop - origin,
        exposed=Intervals(cut.group, cut.start - origin, cut.end - origin),
    )


def _moved(t: Timeline, origin: float, stop: float) -> Timeline:
    """Count times from `origin`, and cut what reaches beyond either end."""
    start, end = np.clip(t.start, origin, stop), np.clip(t.end, origin, stop)
    arrived = np.clip(t.start + t.waited, start, end)
    return replace(t, start=start - origin, end=end - origin, waited=arrived - start)


def median_step(t: Timeline) -> int:
    """Return the counted step of median duration; the only step where there is one."""
    count = np.flatnonzero(measure.settled(t))
    if not len(count):
        return int(measure.steps(t)[0])
    order = np.argsort(measure.iteration_seconds(t)[count], kind="stable")
    return int(measure.steps(t)[count[order[(len(order) - 1) // 2]]])


def steps_to_draw(sides: Sequence[Timeline], step: int | None) -> list[int]:
    """Return the step of each side: `step`, or the median one of the last side (the measured).

    A side that has not got the step shows its own median one.
    """
    for t in sides:
        if not len(t):
            raise CommschedError(f"the {t.kind} timeline has no spans, so there is nothing to draw")
    if step is not None and not any(step in measure.steps(t) for t in sides):
        known = ", ".join(f"{measure.steps(t)[0]} to {measure.steps(t)[-1]}" for t in sides[-1:])
        raise CommschedError(f"step {step} is not in the timeline; it has steps {known}")
    wanted = median_step(sides[-1]) if step is None else step
    return [wanted if wanted in measure.steps(t) else median_step(t) for t in sides]


def ranks_to_draw(shown: View, ranks: Sequence[int] | None) -> dict[int, str]:
    """Return the ranks to draw and what each stands for: all, or the telling ones of many.

    Slow is who computes longest in the step.
    """
    seen: npt.NDArray[np.int32] = measure.ranks_seen(shown.spans)
    if ranks is not None:
        missing = [rank for rank in ranks if rank not in seen]
        if missing:
            raise CommschedError(
                f"rank {missing[0]} has no spans in step {shown.step}; {len(seen)} ranks from "
                f"{seen[0]} to {seen[-1]} have"
            )
        return {rank: "" for rank in sorted(set(ranks))}
    if len(seen) <= MOST_RANKS:
        return {rank: "" for rank in seen.tolist()}
    computing = measure.computes(shown.spans)
    row = np.searchsorted(seen, shown.spans.rank[computing])
    lengths = (shown.spans.end - shown.spans.start)[computing]
    by_speed = seen[np.argsort(np.bincount(row, lengths, len(seen)), kind="stable")].tolist()
    middle = (len(by_speed) - 1) // 2
    chosen = {rank: "first" for rank in seen[:2].tolist()}
    chosen |= {rank: "median" for rank in by_speed[middle - 1 : middle + 2]}
    chosen |= {rank: "slowest" for rank in by_speed[-3:]}
    return dict(sorted(chosen.items()))
