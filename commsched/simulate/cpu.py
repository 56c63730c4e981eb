"""How coding, computing and exchanging of a rank slow each other: they share its cores."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from commsched.arrays import Floats
from commsched.machine.model import Machine

THREADS = 2  # of a rank that are busy while it codes during an exchange
# Upper bound of the share that coding takes from other work: a thread that polls only rarely gets
# a core at once when it wakes. Fitted: among 0.5 to 1 this has the smallest mean error in 109 cells
# of 4 ranks on 2 cores, most clearly for short exchanges. In 23 calibrations exchanges kept a
# median 0.27 of their rate beside busy cores.
MOST = 0.8
NOTHING = 1e-12  # s


class Spans(NamedTuple):
    """One operation of some columns, (columns,) s each, or several, (n, columns)."""

    start: Floats
    end: Floats


class SharedCores:
    """The coding of some columns, and how much it slows their other work.

    Coding is all processor time, and so is an exchange in shared memory: copies and additions. An
    exchange between nodes stops, too, if its thread is late for a message that others wait for.
    On a node of n ranks and c cores, coding takes a `share` of min(MOST, max(0, 2 - c / n)) of the
    processor from the rank's other work: nothing if each rank has two cores, nearly everything if
    each rank has one or less. Measured in 850 exchanges on shaped links: each second of coding
    cost 0.3 to 1.3 s at any rate.
    Source: conservation of processor time. Holds for the rates of a machine file that was measured
    with all ranks at work.
    """

    def __init__(self, share: Floats | float) -> None:
        self._share = share  # (columns,), or one for all
        self._idle = not np.any(share)
        self._coding: list[Spans] = []
        self._foreseen: Spans | None = None

    def forget_before(self, moment: float) -> None:
        """Drop coding that no operation meets any more."""
        self._coding = [span for span in self._coding if span.end.max() > moment]

    def foresee(self, spans: Spans, past: int) -> None:
        """Note coding that nothing can delay, one span after the other, (n, columns) s each.

        It replaces earlier foreseen coding, except for its first `past` spans.
        """
        if self._foreseen is not None:
            start, end = (moments[:past] for moments in self._foreseen)
            self._coding += map(Spans, start, end)
        self._foreseen = spans
        self._earliest, self._latest = spans.start.min(axis=1), spans.end.max(axis=1)

    def coded(self, start: Floats, end: Floats) -> Floats:
        """Note coding that would last from `start` to `end` on idle cores; return its end."""
        if self._idle:
            return end
        later = self._beside(start, end)
        # It takes no more than its own time from others: that comes last.
        self._coding.append(Spans(start + (later - end), later))
        return later

    def stretched(self, start: Floats, end: Floats) -> Floats:
        """Return when an exchange ends that would last from `start` to `end` on idle cores."""
        if self._idle:
            return end
        self._coding = [span for span in self._coding if (span.end > start).any()]
        return self._beside(start, end)

    def _beside(self, start: Floats, end: Floats) -> Floats:
        if self._foreseen is None or not start.size:
            return beside(start, end, self._coding, self._share)
        found, until = end, -np.inf
        while until < found.max():  # a longer span may overlap more coding
            until = float(found.max())
            low = np.searchsorted(self._latest, start.min(), side="right")
            high = np.searchsorted(self._earliest, until)
            near = map(Spans, *(moments[low:high] for moments in self._foreseen))
            found = beside(start, end, [*self._coding, *near], self._share)
        return found


def shares(machine: Machine) -> Floats:
    """Return the share of the processor that coding takes from a rank's other work: (ranks,)."""
    node = np.array(machine.node_of_rank)
    if not machine.cores:
        return np.zeros(len(node))
    share: Floats = np.clip(THREADS - machine.cores / np.bincount(node), 0.0, MOST)[node]
    return share


def beside(start: Floats, end: Floats, coding: Sequence[Spans], share: float | Floats) -> Floats:
    """Return when work ends that would last from `start` to `end` without coding: (columns,) s.

    Beside coding the work goes on at a rate of 1 - share.
    """
    if not coding:
        return end
    first, last = np.array([span.start for span in coding]), np.array([s.end for s in coding])
    meets = (last > start).any(axis=1)
    first, last = first[meets], last[meets]
    order = np.argsort(first, axis=0)
    first = np.maximum(np.take_along_axis(first, order, 0), start)
    lengths = np.maximum(np.take_along_axis(last, order, 0) - first, 0.0)
    slower = share / (1.0 - np.asarray(share))
    for begin, length in zip(first, lengths, strict=True):
        left = end - begin
        within = left > NOTHING
        if not within.any():
            break  # nor does it meet what comes later
        end = np.where(within, end + np.minimum(share * length, slower * left), end)
    return end


def longer(coding: Spans, exchanges: Spans, slowed: float) -> Floats:
    """Return the factor by which each coding lasts longer beside exchanges: (n, ranks).

    A thread that polls for messages, and the processor time that messages take, keep coding from
    its core, its caches and the interpreter. `slowed` (see `Machine`) is measured.
    """
    found = np.ones_like(coding.start)
    for rank in range(found.shape[1]):
        order = np.argsort(exchanges.start[:, rank])
        end = np.maximum.accumulate(exchanges.end[order, rank])
        start = np.maximum(exchanges.start[order, rank], np.append(-np.inf, end[:-1]))
        until = np.cumsum(end - start)
        moments = np.stack([start, end], axis=1).ravel()
        passed = np.stack([until - (end - start), until], axis=1).ravel()  # s of exchanges by then
        own = coding.end[:, rank] - coding.start[:, rank]
        before = np.interp((coding.start[:, rank], coding.end[:, rank]), moments, passed)
        found[:, rank] += (slowed - 1.0) * np.diff(before, axis=0)[0] / np.maximum(own, NOTHING)
    return found


def under_compute(start: Floats, end: Floats, busy: Floats | float, overlap: float) -> Floats:
    """Return when an exchange ends that is slower while its rank computes: (ranks,) s.

    start, end: as if nothing computed; busy: until when the rank computes, from before `start` on.
        end' = start + T / f                 if T <= f c,  c = busy - start, T = end - start
        end' = busy + T - f c                otherwise
    f = `overlap`, in [0, 1], the rate beside compute; f = 0: the exchange waits for its end.
    """
    if overlap == 1.0:
        return end
    covered, alone = np.maximum(busy - start, 0.0), end - start
    within = alone <= overlap * covered
    slowed = start + alone / overlap if overlap else end
    return np.where(within, slowed, end + (1.0 - overlap) * covered)
