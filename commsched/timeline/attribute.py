"""The error of a prediction's iteration, split by cause and operation; the parts sum exactly.

The side with the longer iteration shows the cause: on one rank, its steps are walked from the
end back to the start, from each operation to the operation that it waited for. The times of the
other side are compared along this chain. The lateness between the sides is 0 at the step's start,
and the whole difference at the step's end:

    lateness(x) = (x on the longer side) - (x on the other side),  x since the step's start

- An operation changes the lateness by the difference of its durations, which `makeup` splits.
- The time between two operations changes the lateness, too. A change towards 0 means that lateness
was hidden: all causes so far shrink by one factor. Any other change is new: lost overlap.
"""

from dataclasses import dataclass

import numpy as np

from commsched.arrays import Floats
from commsched.errors import CommschedError
from commsched.timeline import measure
from commsched.timeline.breakdown import CAUSES, OVERLAP, STRAGGLERS, makeup
from commsched.timeline.chain import Walk
from commsched.timeline.cycles import same_steps, totals
from commsched.timeline.header import Predicted
from commsched.timeline.model import Timeline
from commsched.timeline.totals import Totals

END = "(end of the step)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The error of the iteration, predicted - measured, in parts that sum to it, in s.

    compute drift: compute of the rank took longer or shorter than predicted.
    latency, bandwidth: exchanges took longer or shorter, see `breakdown.latency_share`.
    codec: encoding, adding and decoding did, within exchanges and beside them.
    stragglers: waiting for the last rank did, at an exchange or at the step's end.
    lost overlap: an operation began later after its inputs than predicted, and nothing hid that.
    """

    rank: int  # the rank whose steps were walked: that with median waiting
    along: str  # "predicted" or "measured": the side of the chain
    names: tuple[str, ...]
    values: Floats  # (names, causes) s; the order of `CAUSES`

    @property
    def total(self) -> dict[str, float]:
        """The seconds of each cause, summed over all operations."""
        return dict(zip(CAUSES, self.values.sum(axis=0).tolist(), strict=True))


def attribute(
    predicted: Timeline,
    measured: Timeline,
    skip_first: int = 1,
    found: tuple[Totals, Totals] | None = None,
) -> Why | None:
    """Split the difference of the median iterations; None: no rank has all steps of both sides.

    `found`: the totals of both sides, if they are known and of equal steps, see `same_steps`.
    """
    if found is None:
        predicted, measured = same_steps(predicted, measured, skip_first)
    known = predicted.prediction
    rank = _rank(predicted, measured, skip_first)
    if rank is None or min(len(measure.steps(t)) for t in (predicted, measured)) < 2:
        return None
    coded = bool(known.exchanges) and bool(measured.coded.any())
    names = tuple(dict.fromkeys((*predicted.names, *measured.names, END)))
    index = {name: i for i, name in enumerate(names)}
    both = found or (totals(predicted, skip_first), totals(measured, skip_first))
    sides = [
        _ChainSide(t, rank, skip_first, known, of_all, coded)
        for t, of_all in zip((predicted, measured), both, strict=True)
    ]
    longer = int(sides[1].median > sides[0].median)
    slow, other = sides[longer], sides[1 - longer]
    values = np.zeros((len(names), len(CAUSES)))
    for number, against, weight in _pairs(slow.weights, other.weights):
        values += weight * _lateness(slow, number, other, against, index)
    values[index[END], STRAGGLERS] += slow.spread - other.spread
    some = np.flatnonzero(values.any(axis=1))
    return Why(
        rank=rank,
        along=("predicted", "measured")[longer],
        names=tuple(names[i] for i in some),
        values=values[some] * (-1.0 if longer else 1.0),
    )


def _rank(predicted: Timeline, measured: Timeline, skip_first: int) -> int | None:
    """Return a rank with all steps on both sides and median waiting in the measured steps."""
    whole = []
    for t in (predicted, measured):
        counts = measure.settled(t, skip_first)
        counts[1:] |= counts[:-1]  # a step ends where the next one begins
        starts = measure.step_starts(t)[:, counts]
        whole.append(measure.ranks_seen(t)[~np.isnan(starts).any(axis=1)])
    both = np.intersect1d(whole[0], whole[1])
    if not len(both):
        return None
    keep = measure.settled(measured, skip_first)[
        np.searchsorted(measure.steps(measured), measured.step)
    ]
    waited = np.bincount(measured.rank[keep], measured.waited[keep], int(both[-1]) + 1)[both]
    return int(both[np.argsort(waited, kind="stable")[len(both) // 2]])


def central(iterations: Floats) -> Floats:
    """Weigh steps, (steps,), so that the weighted mean of their durations is the median.

    Only the middle half by duration counts; steps below the median have equal weights, and so have
    steps above the median.
    """
    count = len(iterations)
    order = np.argsort(iterations, kind="stable")[count // 4 : count - count // 4]
    half = (len(order) + 1) // 2
    low, high = order[:half], order[-half:]
    below, above = float(iterations[low].mean()), float(iterations[high].mean())
    median = float(np.median(iterations))
    share = min(max((above - median) / (above - below), 0.0), 1.0) if above > below else 0.5
    weights = np.zeros(count)
    weights[low] += share / half
    weights[high] += (1.0 - share) / half
    return weights


def _pairs(a: Floats, b: Floats) -> list[tuple[int, int, float]]:
    """Pair the steps of two sides, sorted by duration, so that each side keeps its weights."""
    edges = [np.cumsum(weights)[:-1] for weights in (a, b)]
    cuts = np.unique(np.concatenate([[0.0], *edges, [1.0]]))
    middle = (cuts[1:] + cuts[:-1]) / 2
    first, second = (np.searchsorted(edge, middle) for edge in edges)
    return list(zip(first.tolist(), second.tolist(), np.diff(cuts).tolist(), strict=True))


class _ChainSide:
    """The counted steps of one rank, in the order of their durations over all ranks."""

    def __init__(
        self,
        t: Timeline,
        rank: int,
        skip_first: int,
        known: Predicted,
        found: Totals,
        coded: bool,
    ) -> None:
        settled = np.flatnonzero(measure.settled(t, skip_first))
        order = np.argsort(measure.iteration_seconds(t)[settled], kind="stable")
        starts = measure.step_starts(t)[np.searchsorted(measure.ranks_seen(t), rank)]
        self.begin, self.end = starts[settled][order], starts[settled + 1][order]
        self.steps: list[int] = measure.steps(t)[settled][order].tolist()
        iterations = np.array(found.iteration)
        if found.counted != len(order):
            raise CommschedError(
                f"the timeline's totals count {found.counted} steps, but its spans {len(order)}"
            )
        # a window of several steps gives each step an equal share of the window's weight
        self.weights = np.convolve(central(iterations), np.full(found.cycle, 1 / found.cycle))[
            order
        ]
        self.median = float(np.median(iterations))
        self.spread = self.median - float(self.weights @ (self.end - self.begin))
        self.walk = Walk(t, rank, known.after)
        self.makeup = makeup(t, known.exchanges, coded, self.walk.rows)
        self._first = self._firsts(t)

    def _firsts(self, t: Timeline) -> dict[float, int]:
        """Return the first compute span at each start time."""
        rows = self.walk.rows
        some = np.flatnonzero(measure.computes(t)[rows])
        return {self.walk.start[i]: i for i in some[::-1].tolist()}

    def chain(self, number: int) -> tuple[list[int], int]:
        """Return the chain of a step, and the span of the next step after the chain, or -1."""
        begin, end = float(self.begin[number]), float(self.end[number])
        following = self._first.get(end, -1)
        return self.walk.chain(begin, end, following), following

    def place(self, i: int, number: int) -> tuple[float, float]:
        """Return start and end of a span since the step's start, within the step: s."""
        begin = float(self.begin[number])
        length = max(float(self.end[number]) - begin, 0.0)
        start, end = self.walk.start[i] - begin, self.walk.end[i] - begin
        return min(max(start, 0.0), length), min(max(end, 0.0), length)

    def length(self, number: int) -> float:
        """Return the seconds of a step on the rank."""
        return float(self.end[number] - self.begin[number])


def _lateness(
    slow: _ChainSide, number: int, other: _ChainSide, against: int, index: dict[str, int]
) -> Floats:
    """Return a step's lateness behind a step of the other side: (names, causes) s at its end."""
    book = _Book(len(index))
    mine = theirs = 0.0  # position in the chain on each side
    chain, following = slow.chain(number)
    for i in chain:
        name, step = slow.walk.key(i)
        start, end = slow.place(i, number)
        same = other.walk.at.get((name, other.steps[against] + step - slow.steps[number]))
        begun, ended, causes = theirs, theirs, slow.makeup[i]
        if same is not None:  # None: the operation is on one side only
            begun, ended = other.place(same, against)
            causes = causes - other.makeup[same]
        book.between(index[name], (start - mine) - (begun - theirs))
        book.work(index[name], (end - start) - (ended - begun), causes)
        mine, theirs = end, ended
    last = END if following < 0 else slow.walk.key(following)[0]
    left = (slow.length(number) - mine) - (other.length(against) - theirs)
    book.between(index[last], left)
    return book.values


class _Book:
    """The lateness so far, by operation and cause."""

    def __init__(self, names: int) -> None:
        self._values = np.zeros((names, len(CAUSES)))
        self._scale = 1.0  # factor of all values, cheaper than scaling each value
        self._late = 0.0  # s, the sum of all values

    @property
    def values(self) -> Floats:
        return self._values * self._scale

    def between(self, name: int, change: float) -> None:
        """Account for the time before an operation: first hidden lateness, then new lateness."""
        if change * self._late < 0:
            if abs(change) >= abs(self._late):
                change += self._late
                self._values[:], self._scale, self._late = 0.0, 1.0, 0.0
            else:
                self._scale *= (self._late + change) / self._late
                self._late += change
                change = 0.0
                if self._scale < 1e-6:
                    self._values, self._scale = self.values, 1.0
        self._add(name, OVERLAP, change)

    def work(self, name: int, change: float, causes: Floats) -> None:
        """Account for a change of an operation's time within the step.

        If only a part of the operation lies in the step, that share of its causes counts; the
        unexplained rest comes from the moment at which it began.
        """
        whole = float(causes.sum())
        share = min(change / whole, 1.0) if change * whole > 0 else 0.0
        for cause, value in enumerate((share * causes).tolist()):
            self._add(name, cause, value)
        self._add(name, OVERLAP, change - share * whole)

    def _add(self, name: int, cause: int, change: float) -> None:
        self._values[name, cause] += change / self._scale
        self._late += change
