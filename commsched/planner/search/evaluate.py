"""The iteration time of many candidates at once: the simulator's clocks, one rank for all.

It is the timeline of `simulate` where all ranks end an exchange together and jitter is off: then
both agree to rounding. Of hand-overs between threads it takes the mean. Elsewhere ranks that end
early begin their next exchange early, and exchanges slow the coding beside them, which only the
simulator knows; the planner asks it about the last few candidates.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commsched.planner.search.prices import PricedRows, Prices
from commsched.planner.space import Bucket, Candidate, MethodChoice, StepClock
from commsched.simulate.cpu import beside, under_compute

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Lasting = Callable[[PricedRows], PricedRows]
BATCH = 4096  # candidates whose clocks fit the cache


class Evaluator:
    """Places the launches of candidates on the clocks of one step that repeats."""

    def __init__(self, clock: StepClock, prices: Prices, lasting: Lasting | None = None) -> None:
        self.clock = clock
        self.prices = prices
        self._lasting = lasting  # how long launches last instead of their prices
        self.count = 0  # candidates evaluated
        self._remaining = np.array(clock.remaining)
        self._backward = sum(clock.backward)
        self._forward = sum(clock.forward)

    def one(self, candidate: Candidate) -> float:
        """Seconds of a candidate's iteration."""
        rows = self.rows(candidate.choices)
        index = np.arange(len(candidate.choices))[:, None]
        return float(self.iterations(rows, index, candidate.late)[0])

    def rows(self, choices: Sequence[MethodChoice]) -> PricedRows:
        """Price launches, and one more that is nothing."""
        buckets: list[Bucket] = [c.bucket for c in choices]
        rows = self.prices.rows(buckets, [c.method for c in choices], self.clock.apply)
        rows = PricedRows(
            np.append(rows.ready + self.clock.handover, 0.0),
            np.append(rows.after, len(self.clock.forward)),
            np.append(rows.apply, 0.0),
            np.concatenate([rows.seconds, np.zeros((*rows.seconds.shape[:2], 1))], axis=2),
            np.append(rows.phases, 0),
        )
        return rows if self._lasting is None else self._lasting(rows)

    def iterations(self, rows: PricedRows, index: Ints, late: bool) -> Floats:
        """(c,) s of candidates whose k-th launch is row index[k, c]; the last row is nothing."""
        self.count += index.shape[1]
        if index.shape[1] <= BATCH:
            return self._batch(rows, index, late)
        parts = range(0, index.shape[1], BATCH)
        return np.concatenate([self._batch(rows, index[:, i : i + BATCH], late) for i in parts])

    def _batch(self, rows: PricedRows, index: Ints, late: bool) -> Floats:
        """The same for some candidates; those with the buckets of the first share its tail."""
        ends = self._ends(rows, index, late)
        if not ends.size:
            return self._last(rows, index, ends, late)
        kinds = rows.kinds.take(index)
        others = np.flatnonzero((kinds != kinds[:, :1]).any(axis=0))
        if not len(others):
            return self._last(rows, index[:, :1], ends, late)
        own = self._last(rows, index[:, others], ends[:, others], late)
        found = self._last(rows, index[:, :1], ends, late)
        found[others] = own
        return found

    def _last(self, rows: PricedRows, index: Ints, ends: Floats, late: bool) -> Floats:
        """(c,) s of candidates whose launches end at `ends`, of which the buckets are `index`."""
        apply = rows.apply.take(index)
        total = apply.sum(axis=0)
        if late:
            tails = self._tails(rows.after.take(index), apply)
        else:
            tails = np.cumsum(apply[::-1], axis=0)[::-1] + self._forward
        ends += tails
        found: Floats = np.maximum(
            ends.max(axis=0, initial=0.0), self._backward + self._forward + total
        )
        return found

    def _tails(self, after: Ints, apply: Floats) -> Floats:
        """Work of the next forward pass from each launch's apply on: (launches, c) s.

        Launches are applied in the order of their first reader, those of one layer in plan order.
        """
        place = after * after.shape[1] + np.arange(after.shape[1])
        of_layer = np.zeros(len(self._remaining) * after.shape[1])
        tails = self._remaining.take(after)
        for k in range(len(after)):
            before = of_layer.take(place[k])
            of_layer[place[k]] = before + apply[k]
            tails[k] -= before
        later = np.cumsum(of_layer.reshape(-1, after.shape[1])[::-1], axis=0)[::-1]
        tails += later.ravel().take(place)
        return tails

    def _ends(self, rows: PricedRows, index: Ints, late: bool) -> Floats:
        """When each launch is decoded, in s from the start of the backward pass on."""
        size = index.shape[1]
        encoder = exchange = decoder = np.zeros(size)
        compute = np.full(size, self._backward)
        ends = np.empty(index.shape)
        coding = _Coding(self.clock.share)
        votes, *parts = rows.seconds
        several = [part.any() for part in votes]
        depth = np.maximum.reduce(rows.phases.take(index), axis=1).tolist()
        chained = self.clock.share > 0 and max(depth, default=0) == 1
        if chained:
            coding.chain = _Chain.of(rows, index)
        # A phase that a method does not have begins at -inf and takes no time: no clock moves.
        waits = np.where(np.arange(len(votes))[:, None] < rows.phases, 0.0, -np.inf)
        for k in range(len(index)):
            now = rows.ready.take(index[k])
            for phase in range(depth[k]):
                encode, move, decode = (part[phase].take(index[k]) for part in parts)
                there = waits[phase].take(index[k])
                heard, all_heard = there + self.clock.handover, there + self.clock.slowest
                if phase:
                    now = decoder + heard
                if several[phase]:
                    vote = votes[phase].take(index[k])
                    start = np.maximum(exchange, now + self.clock.slowest)
                    voted = self._stretched(start, start + vote, compute, coding)
                    exchange = np.where(vote > 0, voted, exchange)
                    now = np.where(vote > 0, voted, now)
                begin = np.maximum(encoder, now)
                encoder = coding.add(begin, begin + encode, phase > 0)
                start = np.maximum(exchange, encoder + all_heard)
                if self.clock.share and phase == 0 and not chained:
                    coding.foresee(rows, index, k, encoder)
                exchange = self._stretched(start, start + move, compute, coding)
                begin = np.maximum(decoder, exchange + heard)
                decoder = coding.add(begin, begin + decode, True)
            ends[k] = decoder + self.clock.slowest
            coding.forget_before(float(exchange.min()))
            if not late:
                compute = np.where(
                    index[k] < len(rows.ready) - 1,
                    np.maximum(compute, ends[k]) + rows.apply.take(index[k]),
                    compute,
                )
        return ends

    def _stretched(self, start: Floats, end: Floats, compute: Floats, coding: "_Coding") -> Floats:
        """When an exchange ends that shares its rank's cores with compute and coding."""
        return coding.stretched(start, under_compute(start, end, compute, self.clock.overlap))


class _Chain(NamedTuple):
    """The first encodings of all launches where none waits for an exchange."""

    first: Floats  # (launches, c) s
    last: Floats  # (launches, c) s
    earliest: Floats  # (launches,) s of `first` over all candidates
    latest: Floats  # (launches,) s of `last`

    @classmethod
    def of(cls, rows: PricedRows, index: Ints) -> "_Chain":
        """One behind the other as they become ready."""
        first, last = np.empty(index.shape), np.empty(index.shape)
        encoder = np.zeros(index.shape[1])
        for k in range(len(index)):
            first[k] = np.maximum(encoder, rows.ready.take(index[k]))
            encoder = last[k] = first[k] + rows.seconds[1, 0].take(index[k])
        return cls(first, last, first.min(axis=1), last.max(axis=1))

    def spans(self, start: float, end: float) -> list[tuple[Floats, Floats]]:
        """Those of which some candidate's may lie between two moments."""
        low = np.searchsorted(self.latest, start, side="right")
        high = np.searchsorted(self.earliest, end)
        return list(zip(self.first[low:high], self.last[low:high], strict=True))


class _Coding:
    """The coding of one step, which slows what comes beside it (see `simulate.crowd`)."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.chain: _Chain | None = None
        self.spans: list[tuple[Floats, Floats]] = []
        self.coming: list[tuple[Floats, Floats]] = []

    def add(self, start: Floats, end: Floats, late: bool) -> Floats:
        """Note a span of coding; returns when it ends, if `late` beside what was noted before."""
        if not self.share or (self.chain is not None and not late):
            return end
        later = self.stretched(start, end) if late else end
        self.spans.append((start + (later - end), later))
        return later

    def foresee(self, rows: PricedRows, index: Ints, k: int, encoder: Floats) -> None:
        """Note the first encodings of the launches that follow: none of them waits for `k`.

        In each candidate up to the first launch of several phases: what follows waits for it.
        """
        self.coming = []
        alone = np.ones(index.shape[1], np.bool_)
        for later in range(k + 1, len(index)):
            alone &= rows.phases.take(index[later - 1]) <= 1
            if not alone.any():
                return
            begin = np.maximum(encoder, rows.ready.take(index[later]))
            encoder = begin + rows.seconds[1, 0].take(index[later])
            self.coming.append((begin, np.where(alone, encoder, begin)))

    def forget_before(self, moment: float) -> None:
        """Drop coding that no later exchange or coding meets."""
        self.spans = [span for span in self.spans if span[1].max() > moment]

    def stretched(self, start: Floats, end: Floats) -> Floats:
        """When something ends that coding slows."""
        if not self.share or not start.size:
            return end
        if self.chain is None:
            return beside(start, end, [*self.spans, *self.coming], self.share)
        found, until = end, -np.inf
        while until < found.max():  # what it meets may make it meet more
            until = float(found.max())
            spans = self.chain.spans(float(start.min()), until)
            found = beside(start, end, [*self.spans, *spans], self.share)
        return found
