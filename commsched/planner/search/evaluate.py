"""The iteration time of many candidates at once, by the clocks of one rank that stands for all.

The time equals that of `simulate` if all ranks end each exchange together, nothing jitters and
threads take up work at once (law 9). Otherwise it is an estimate: hand-overs between threads last
their mean, ranks that end an exchange early wait for the others, and tasks that share cores take
together at least the sum of their needs. So the planner simulates the last few candidates.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from commsched.arrays import Floats, Ints
from commsched.planner.deadline import Check, go_on
from commsched.planner.search.prices import PricedRows, Prices
from commsched.planner.space import Bucket, Candidate, MethodChoice, StepClock
from commsched.simulate.clocks import Clocks, latest, where
from commsched.timeline.intervals import difference, intervals

Lasting = Callable[[PricedRows], PricedRows]
BATCH = 4096  # candidates whose clocks fit the cache


class _Counting(Clocks):
    """Clocks that also add up how often the exchanges' threads are woken."""

    woken: Any = 0.0

    def asleep(self, stream: str, ready: Any) -> Any:
        asleep = super().asleep(stream, ready)
        if stream == "exchange":
            self.woken = self.woken + asleep
        return asleep


AnyClocks = TypeVar("AnyClocks", bound=Clocks)


class Evaluator:
    """Computes iterations by placing candidates' launches on the clocks of a repeated step."""

    def __init__(
        self,
        clock: StepClock,
        prices: Prices,
        lasting: Lasting | None = None,
        check: Check = go_on,
    ) -> None:
        self.clock = clock
        self.prices = prices
        self._check = check
        self._lasting = lasting  # durations of launches, in place of their prices
        self.count = 0  # candidates evaluated
        self._remaining = np.array(clock.remaining)
        self._backward = sum(clock.backward)
        self._forward = sum(clock.forward)

    def one(self, candidate: Candidate) -> float:
        """Return the seconds of a candidate's iteration."""
        rows = self.rows(candidate.choices)
        index = np.arange(len(candidate.choices))[:, None]
        return float(self.iterations(rows, index, candidate.late)[0])

    def rows(self, choices: Sequence[MethodChoice]) -> PricedRows:
        """Price launches; add an empty launch as the last row."""
        buckets: list[Bucket] = [c.bucket for c in choices]
        rows = self.prices.rows(buckets, [c.method for c in choices], self.clock.apply)
        rows = PricedRows(
            np.append(rows.ready + self.clock.handover * self.clock.beside, 0.0),
            np.append(rows.after, len(self.clock.forward)),
            np.append(rows.apply, 0.0),
            np.concatenate([rows.seconds, np.zeros((*rows.seconds.shape[:2], 1))], axis=2),
            np.append(rows.phases, 0),
            np.concatenate([rows.late, np.zeros((len(rows.late), 1))], axis=1),
            np.append(rows.taken, 0.0),
        )
        return rows if self._lasting is None else self._lasting(rows)

    def iterations(self, rows: PricedRows, index: Ints, late: bool) -> Floats:
        """Return (c,) s of candidates whose k-th launch is row index[k, c]; the last is empty."""
        self.count += index.shape[1]
        if index.shape[1] <= BATCH:
            return self._batch(rows, index, late)
        parts = range(0, index.shape[1], BATCH)
        return np.concatenate([self._batch(rows, index[:, i : i + BATCH], late) for i in parts])

    def _batch(self, rows: PricedRows, index: Ints, late: bool) -> Floats:
        """Return the s of some candidates: at least the time that their tasks need of the cores."""
        self._check()
        clocks = self._clocks(index, _Counting)
        ends = self._ends(rows, index, late, clocks)
        found = self._placed(rows, index, ends, late)
        if np.isinf(self.clock.capacity):
            return found
        votes, _, exchange, _ = rows.seconds.sum(axis=1)
        used = rows.taken + self.clock.busy * (votes + exchange) + self.clock.on_cores * rows.apply
        own = self.clock.on_cores * (self._backward + self._forward)
        own += self.clock.dispatch * clocks.woken
        least: Floats = (own + used.take(index).sum(axis=0)) / self.clock.capacity
        return np.maximum(found, least)

    def _placed(self, rows: PricedRows, index: Ints, ends: Floats, late: bool) -> Floats:
        """Return the s if every task has a core; candidates of equal buckets share tails."""
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
        """Return (c,) s of candidates whose launches, the rows `index`, end at `ends`."""
        apply, forward = rows.apply.take(index), self._forward
        if late:
            tails = self._tails(rows.after.take(index), apply)
        else:
            apply, forward = apply * self.clock.early, forward + self.clock.update
            tails = np.cumsum(apply[::-1], axis=0)[::-1] + forward
        ends += tails
        found: Floats = np.maximum(
            ends.max(axis=0, initial=0.0), self._backward + forward + apply.sum(axis=0)
        )
        return found

    def _tails(self, after: Ints, apply: Floats) -> Floats:
        """Return the work of the next forward pass from each launch's apply on: (launches, c) s.

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

    def exposed(self, candidate: Candidate) -> tuple[float, float]:
        """Return the s of a candidate's iteration, and the s of its exposed exchanges."""
        noted: list[tuple[float, float]] = []

        class Noting(Clocks):
            """Clocks that note when exchanges begin and end."""

            def exchange(
                self, stream: str, start: Any, end: Any, within: float = 0.0, late: Any = 0.0
            ) -> Any:
                end = super().exchange(stream, start, end, within, late)
                noted.append((start, end))
                return end

        rows = self.rows(candidate.choices)
        index = np.arange(len(candidate.choices))[:, None]
        clocks = self._clocks(index, Noting)
        ends = self._ends(rows, index, candidate.late, clocks)[:, 0].tolist()
        spans = np.array(noted)
        busy = np.array(list(self._computing(rows, ends, candidate.late)))
        there = [
            intervals(np.zeros(len(some), np.int64), *some.T)
            for some in (spans[spans[:, 0] >= 0], busy)
        ]
        left = difference(*there)
        return float(busy[-1, 1]), float((left.end - left.start).sum())

    def _computing(
        self, rows: PricedRows, ends: Sequence[float], late: bool
    ) -> Iterator[tuple[float, float]]:
        """Yield start and end of each computation of a rank in a step of one candidate."""
        share, now = 1.0 if late else self.clock.early, self._backward
        apply = (rows.apply * share).tolist()
        yield 0.0, now
        first: dict[int, list[int]] = {}  # layer -> launches that are applied before its forward
        for k, layer in enumerate(rows.after[: len(ends)].tolist()):
            first.setdefault(layer if late else 0, []).append(k)
        for layer, forward in enumerate(self.clock.forward):
            for k in first.get(layer, ()):
                start = max(now, ends[k])
                now = start + apply[k]
                yield start, now
            if not (late or layer):
                forward += self.clock.update
            yield now, now + forward
            now += forward

    def _clocks(self, index: Ints, kind: type[AnyClocks]) -> AnyClocks:
        """Return the clocks of candidates at the start of the backward pass."""
        size, clock = index.shape[1], self.clock
        shape = None if size == 1 else size
        clocks = kind(shape, clock.overlap, clock.waking, clock.beside)
        clocks.free["compute"] = self._backward if size == 1 else np.full(size, self._backward)
        return clocks

    def _ends(self, rows: PricedRows, index: Ints, late: bool, clocks: Clocks) -> Floats:
        """Return when each launch is decoded, in s from the start of the backward pass."""
        clock = self.clock
        ends = np.empty(index.shape)
        several = [part.any() for part in rows.seconds[0]]
        depth = np.maximum.reduce(rows.phases.take(index), axis=1).tolist()
        for k, launch in enumerate(self._launches(rows, index)):
            ready = launch.ready
            for phase in range(depth[k]):
                own, of_all = launch.heard[phase], launch.all_heard[phase]
                if phase:
                    ready = clocks.free["decode"] + own
                vote, *parts = launch.seconds[phase]
                if several[phase]:
                    there = where(vote > 0, ready + clock.slowest, -np.inf)
                    voted = clocks.start("exchange", there, vote)
                    ready = where(vote > 0, voted, ready)
                waits = launch.late[phase] if self.prices.waking else 0.0
                clocks.phase(ready, parts, own, of_all, waits, gathers=not phase)
            ends[k] = end = clocks.free["decode"] + clock.slowest
            if not late:
                compute = clocks.free["compute"]
                applied = latest(compute, end) + launch.apply
                clocks.free["compute"] = where(launch.real, applied, compute)
        return ends

    def _launches(self, rows: PricedRows, index: Ints) -> Iterator["_Launch"]:
        """Yield the columns of each launch: arrays over candidates, or numbers of a single one."""
        # A phase that a method does not have begins at -inf and takes no time: no clock moves.
        there = np.where(np.arange(len(rows.seconds[0]))[:, None] < rows.phases, 0.0, -np.inf)
        heard, all_heard = there + self.clock.handover, there + self.clock.slowest
        one = index.shape[1] == 1
        some = max(1, BATCH // max(index.shape[1], 1))  # launches that are looked up together
        for k in range(0, len(index), some):
            here = index[k : k + some, 0] if one else index[k : k + some]
            columns = (
                rows.ready.take(here),
                rows.apply.take(here) * self.clock.early,
                np.moveaxis(rows.seconds.take(here, axis=2), 2, 0).swapaxes(1, 2),
                np.moveaxis(heard.take(here, axis=1), 1, 0),
                np.moveaxis(all_heard.take(here, axis=1), 1, 0),
                np.moveaxis(rows.late.take(here, axis=1), 1, 0),
                here < len(rows.ready) - 1,
            )
            each = (column.tolist() for column in columns) if one else columns
            yield from map(_Launch, *each)


class _Launch(NamedTuple):
    """A launch of some candidates: columns over them, or numbers of a single one."""

    ready: Any  # s
    apply: Any  # s, of its own
    seconds: Any  # (phases, 4) s: vote, encode, exchange, decode
    heard: Any  # (phases,) s, until the rank's next stream takes up the finished work
    all_heard: Any  # (phases,) s, until the next streams of all ranks have
    late: Any  # (phases,) s that an exchange lasts longer while the rank computes
    real: Any  # whether this is a launch, not the empty row
