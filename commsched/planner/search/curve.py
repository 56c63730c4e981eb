"""Curves of a method's seconds over the number of elements, from as few sizes as possible."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from commsched.arrays import Floats

LINEAR = 2e-3  # relative error of a curve between two of its points
DEPTH = 7  # halvings of a gap, at most
LOOKS = 33  # sizes at which a library is first asked for its algorithm


def refined(
    ends: Sequence[int], priced: Callable[[int], Floats], depth: int, found: dict[int, Floats]
) -> Iterator[list[int]]:
    """Fill `found` with the seconds at a curve's sizes: (4, phases) s each.

    Yields sizes for the caller to price, and then gets their seconds from `priced`. First come the
    ends of gaps; then gaps are halved, by ratio and at most `depth` times, until the curve between
    their ends is straight.
    """
    gaps, new = list(pairwise(ends)), list(ends)
    for _ in range(depth):
        halved = list(_halved(gaps))
        new = [*new, *(middle for _, middle, _ in halved)]
        if new:
            yield new
        found |= {numel: priced(numel) for numel in new}
        new = []
        bent = [
            each
            for each, straight in zip(halved, _straight(halved, found), strict=True)
            if not straight
        ]
        gaps = [gap for low, middle, high in bent for gap in ((low, middle), (middle, high))]


def curve_of(found: Mapping[int, Floats]) -> tuple[Floats, Floats]:
    """Return elements (g,), ascending, and seconds (4, phases, g)."""
    sizes = sorted(found)
    seconds = _equally_long([found[numel] for numel in sizes])
    return np.array(sizes, np.float64), np.stack(seconds, axis=-1)


def smooth_between(low: int, high: int, taken: Callable[[int], str]) -> list[int]:
    """List the sizes from `low` to `high` between which a library takes one algorithm."""
    found = {low, high}
    looks = np.clip(np.geomspace(low, high, LOOKS).astype(int), low, high)
    seen = {numel: taken(numel) for numel in sorted({low, high, *looks.tolist()})}
    for before, after in pairwise(seen):
        first = seen[before]
        if seen[after] == first:
            continue
        while after - before > 1:
            middle = (before + after) // 2
            before, after = (middle, after) if taken(middle) == first else (before, middle)
        found |= {before, after}
    return sorted(found)


def _halved(gaps: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield each gap with the size between its ends, by ratio, if there is one."""
    for low, high in gaps:
        middle = round((low * high) ** 0.5)
        if low < middle < high:
            yield low, middle, high


def _straight(gaps: Sequence[tuple[int, int, int]], found: Mapping[int, Floats]) -> list[bool]:
    """Tell for each gap whether the price at its middle lies on the line between its ends."""
    if not gaps:
        return []
    each = _equally_long([found[numel] for gap in gaps for numel in gap])
    begin, own, end = np.stack(each).reshape(len(gaps), 3, -1).swapaxes(0, 1)
    low, middle, high = np.array(gaps).T[..., None]
    line = begin + (end - begin) * ((middle - low) / (high - low))
    so: list[bool] = (np.abs(line - own) <= 1e-9 + LINEAR * np.abs(own)).all(axis=1).tolist()
    return so


def _equally_long(found: Sequence[Floats]) -> list[Floats]:
    """Give all (4, phases) s the same number of phases: larger buckets may need more."""
    most = max(each.shape[1] for each in found)
    if all(each.shape[1] == most for each in found):
        return list(found)
    return [np.pad(each, ((0, 0), (0, most - each.shape[1]))) for each in found]
