"""The cycle after which a timeline's operations repeat, and the totals of its counted steps."""

import numpy as np

from commsched.arrays import Bools, Floats
from commsched.timeline import measure
from commsched.timeline.model import Timeline
from commsched.timeline.totals import Totals


def cycle(t: Timeline, keep: Bools) -> int:
    """Return the number of steps after which the operations of the kept steps repeat, or all steps.

    Only names count, so that a run and its prediction have equal cycles. If there are three cycles
    the first may differ, because it merges nothing of earlier steps.
    """
    present = np.zeros((len(keep), len(t.names)), bool)
    present[np.searchsorted(measure.steps(t), t.step), t.name] = True
    alike = [row.tobytes() for row in present[keep]]
    for length in range(1, len(alike) // 2 + 1):
        first = 0 if len(alike) < 3 * length else length
        if alike[first + length :] == alike[first:-length]:
            return length
    return max(len(alike), 1)


def windows(values: Floats, length: int) -> Floats:
    """Return the mean over every `length` neighbours: (..., n) -> (..., n - length + 1)."""
    if values.shape[-1] < length:
        return values[..., :0]
    found: Floats = np.lib.stride_tricks.sliding_window_view(values, length, -1).mean(axis=-1)
    return found


def totals(t: Timeline, skip_first: int = 1) -> Totals:
    """Return the totals of a timeline's counted steps.

    A prediction that has spans of some ranks only stores the totals of all ranks.
    """
    if t.prediction.totals is not None and skip_first == 1:
        return t.prediction.totals
    keep = measure.settled(t, skip_first)
    length = cycle(t, keep)
    row, column, shape = measure.cells(t)
    sent = np.bincount(row * shape[1] + column, t.nbytes, shape[0] * shape[1]).reshape(shape)
    bubble = measure.idle(t).mean(axis=0) if measure.has_messages(t) else np.zeros(len(keep))

    def per_window(values: Floats) -> tuple[float, ...]:
        return tuple(windows(values[keep], length).tolist())

    return Totals(
        steps=len(keep),
        counted=int(keep.sum()),
        cycle=length,
        iteration=per_window(measure.iteration_seconds(t)),
        exposed=per_window(measure.exposed(t).mean(axis=0)),
        hidden=per_window(measure.hidden(t).mean(axis=0)),
        bubble=per_window(bubble) if measure.has_messages(t) else (),
        sent=per_window(sent.sum(axis=0) / max(shape[0], 1)),
    )


def same_steps(one: Timeline, other: Timeline, skip_first: int = 1) -> tuple[Timeline, Timeline]:
    """Return two timelines on their common steps, if their operations repeat differently."""
    some = measure.steps(one), measure.steps(other)
    both = np.intersect1d(*some)
    known = one.prediction.totals or other.prediction.totals  # totals of all steps
    if known or len(both) < 2 or np.array_equal(*some):
        return one, other
    if totals(one, skip_first).cycle == totals(other, skip_first).cycle:
        return one, other
    return one.select(np.isin(one.step, both)), other.select(np.isin(other.step, both))
