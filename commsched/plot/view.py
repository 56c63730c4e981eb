"""The view of a timeline in a picture: one step, at most eight ranks, one time axis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from commsched.arrays import Floats
from commsched.errors import CommschedError
from commsched.timeline import measure
from commsched.timeline.intervals import Intervals, intersection
from commsched.timeline.model import Timeline

MOST_RANKS = 8
SAME = 1e-8  # s: times of ranks that differ less are drawn as equal
ALIKE = 1e-3  # of the step: ranks whose times differ less are grouped as equal
ROLES = ("first", "median", "slowest", "latest")


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One step of one timeline; times count from the step's first start on any rank."""

    kind: str
    step: int
    spans: Timeline  # cut to the step, including parts of other steps' spans
    length: float  # s from the first begin on a rank until the next step has begun everywhere
    iteration: float  # s of the step, see `iteration_seconds`; NaN for the last step
    exposed: Intervals  # s, by rank
    begun: Mapping[int, tuple[float, ...]]  # s, when other steps begin on each rank


def view(t: Timeline, step: int) -> View:
    """Cut a timeline to `step`: until the next step has begun on all ranks.

    The last step lasts until the end of its last span.
    """
    assert step in measure.steps(t)
    column = int(np.searchsorted(measure.steps(t), step))
    starts, seen = measure.step_starts(t), measure.ranks_seen(t).astype(np.int64)
    origin = float(np.nanmin(starts[:, column]))
    ends = starts[:, column + 1] if column + 1 < starts.shape[1] else t.end[t.step == step]
    stop = max(float(np.nanmax(ends)), origin)
    found = measure.exposed_intervals(t)
    whole = Intervals(seen, np.full(len(seen), origin), np.full(len(seen), stop))
    cut = intersection(found, whole)
    spans = t.select((t.end >= origin) & (t.start <= stop) & ((t.step == step) | (t.end > origin)))
    inside = (starts > origin + SAME) & (starts < stop - SAME)
    inside[:, column] = False
    return View(
        kind=t.kind,
        step=step,
        spans=_moved(spans, origin, stop),
        length=stop - origin,
        iteration=float(measure.iteration_seconds(t)[column]),
        exposed=Intervals(cut.group, cut.start - origin, cut.end - origin),
        begun={
            rank: tuple((row[keep] - origin).tolist())
            for rank, row, keep in zip(seen.tolist(), starts, inside, strict=True)
        },
    )


def _moved(t: Timeline, origin: float, stop: float) -> Timeline:
    """Count times from `origin`, and cut spans at both ends."""
    start, end = np.clip(t.start, origin, stop), np.clip(t.end, origin, stop)
    arrived = np.clip(t.start + t.waited, start, end)
    return replace(t, start=start - origin, end=end - origin, waited=arrived - start)


def median_step(t: Timeline) -> int:
    """Return the counted step of median duration, or the only step."""
    count = np.flatnonzero(measure.settled(t))
    if not len(count):
        return int(measure.steps(t)[0])
    order = np.argsort(measure.iteration_seconds(t)[count], kind="stable")
    return int(measure.steps(t)[count[order[(len(order) - 1) // 2]]])


def steps_to_draw(sides: Sequence[Timeline], step: int | None) -> list[int]:
    """Return the step of each side: `step`, or the median step of the last (measured) side.

    A side without that step shows its own median step.
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
    """Return the ranks to draw and the role of each: all ranks, or representative ones of many.

    Of ranks with equal work at equal times, within 0.1 % of the step, only the first is drawn. If
    too many differ, the slowest ranks compute longest in the step; if all compute equally long, the
    latest ranks end last.
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
    kinds = alike(shown)
    if len(kinds) <= MOST_RANKS:
        return {same[0]: f"first of {len(same)} alike" if len(same) > 1 else "" for same in kinds}
    own = shown.spans.select(shown.spans.step == shown.step)
    row, computing = np.searchsorted(seen, own.rank), measure.computes(own)
    length, last = np.zeros(len(seen)), np.zeros(len(seen))
    np.add.at(length, row[computing], (own.end - own.start)[computing])
    np.maximum.at(last, row, own.end)
    worst, key = "slowest", length
    if np.ptp(length) <= SAME:
        worst, key = "latest", last
    by_speed = seen[np.argsort(key, kind="stable")].tolist()
    middle = (len(by_speed) - 1) // 2
    chosen = {rank: "first" for rank in seen[:2].tolist()}
    chosen |= {rank: "median" for rank in by_speed[middle - 1 : middle + 2]}
    chosen |= {rank: worst for rank in by_speed[-3:]}
    return dict(sorted(chosen.items()))


def alike(shown: View) -> list[list[int]]:
    """Group the ranks with equal spans at equal times, ignoring slivers of other steps."""
    t, tolerance = shown.spans, ALIKE * shown.length + SAME
    t = t.select((t.step == shown.step) | (t.end - t.start > tolerance))
    order = np.lexsort((t.name, t.step, t.rank))
    what = np.stack([t.stream, t.name, t.step], axis=1)[order]
    times = np.stack([t.start, t.end], axis=1)[order]
    seen, first = np.unique(t.rank[order], return_index=True)
    groups: dict[bytes, list[tuple[Floats, list[int]]]] = {}
    split = (np.split(columns, first[1:]) for columns in (what, times))
    for rank, names, moments in zip(seen.tolist(), *split, strict=True):
        same = groups.setdefault(names.tobytes(), [])
        near = (group for at, group in same if np.abs(at - moments).max() <= tolerance)
        found = next(near, None)
        if found is None:
            same.append((moments, [rank]))
        else:
            found.append(rank)
    return sorted(group for same in groups.values() for _, group in same)


def drawn_ranks(t: Timeline, chosen: dict[int, str]) -> str:
    """Describe the drawn ranks of a timeline, and the number of ranks in its file."""
    held, every = len(measure.ranks_seen(t)), f"{t.ranks:,} rank{'s' if t.ranks > 1 else ''}"
    if len(chosen) == t.ranks:
        return every
    roles = [role for role in ROLES if role in chosen.values()]
    said = f" ({', '.join(roles[:-1])} and {roles[-1]})" if len(roles) > 1 else ""
    if not roles and any(chosen.values()):
        said = " (one of each that are alike)" if len(chosen) > 1 else " (all are alike)"
    rest = "" if held == t.ranks else f", {held:,} of them in the file"
    return f"{len(chosen)} of {every}{said}{rest}"


def check_same_net(sides: Sequence[Timeline]) -> None:
    """Reject timelines of different nets."""
    nets = list(dict.fromkeys(t.header.net for t in sides if t.header.net is not None))
    if len(nets) > 1:
        raise CommschedError(
            f"the timelines are of different nets: {' and '.join(nets)}; draw one at a time"
        )


def same_plan(sides: Sequence[Timeline]) -> bool:
    """Tell whether all sides have the same plan, so that ranks and operations are equal."""
    return len({(t.plan_hash, t.ranks) for t in sides}) == 1


def named(sides: Sequence[Timeline], names: Sequence[str]) -> list[str]:
    """Name the sides by their kinds; if the kinds are equal, by `names` or else by their order."""
    kinds = [t.kind for t in sides]
    if len(set(kinds)) == len(kinds):
        return kinds
    return list(names) if len(set(names)) == len(kinds) else ["first", "second"]
