"""Stalls of compute on a rank or a whole node: their frequency, length and slowdown."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated

import numpy as np

from commsched.arrays import Floats, Ints
from commsched.errors import CommschedError
from commsched.records import NOT_NEGATIVE, NUMBER, Check, normalise, one_of, pairs, unit
from commsched.units import significant

MOST = 8  # points of a fitted law
SURE = 4.0  # sigmas of the jitter above which a step's compute counts as stalled
CHANCE = 0.98  # share of stalls that count; the least may be of ranks that stall together by chance
LEAST = 0.05  # share of a step's compute below which nothing counts as a stall
RANK, NODE = "rank", "node"
DRAWN = 10_000  # numbers over which a mean is taken
LONG = 1e6  # largest stall, in steps' compute
STEPS = Check("must be from 1 to 1000000", lambda steps: 1 <= steps <= 10**6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """A law of stalls: for `steps` steps in a row each step's compute takes 1 + x times as long.

    points: (share of steps whose x is at least, x), shares descending, x ascending. In between
    log x is linear in log share, so that two points are a truncated Pareto law; no x is above the
    last point's, and steps beyond the first share have x = 0. Ranks, or nodes, stall independently.

    every: s of compute that count as a step of this law, however long a step of training is; such
    short stalls are in the seconds of a net's layers already, on average. 0: a step of training.
    """

    among: Annotated[str, one_of(RANK, NODE)]
    every: Annotated[float, unit("ms", 1e-3), NOT_NEGATIVE] = 0.0  # s
    steps: Annotated[int, STEPS] = 1
    points: Annotated[tuple[tuple[float, float], ...], pairs(NUMBER, NUMBER)]

    def __post_init__(self) -> None:
        normalise(self, "stalls: ")
        last, before = 1.0, 0.0
        for share, longer in self.points:
            if not (0.0 < share <= last and before <= longer <= LONG and longer > 0.0):
                raise CommschedError(
                    f"stalls: point ({share:g}, {longer:g}) is out of order: shares descend from at"
                    f" most 1 and are above 0, stalls ascend up to {LONG:g} and are above 0"
                )
            last, before = share, longer
        if not self.points:
            raise CommschedError("stalls: points must have at least one (share of steps, stall)")

    def longer(self, drawn: Floats) -> Floats:
        """Return x for numbers drawn evenly from (0, 1), the shares of steps with at least x."""
        share, found = np.log(np.array(self.points)[::-1]).T
        within = drawn <= self.points[0][0]
        longer: Floats = np.where(within, np.exp(np.interp(np.log(drawn), share, found)), 0.0)
        return longer

    @property
    def usual(self) -> float:
        """Return the mean x, which the seconds of layers include."""
        return _mean(self) if self.every else 0.0


@cache
def _mean(law: Stalls) -> float:
    return float(law.longer((np.arange(DRAWN) + 0.5) / DRAWN).mean())


def fitted(
    seconds: Floats, node_of_rank: tuple[int, ...], every: float = 0.0
) -> tuple[Stalls, ...]:
    """Return the laws of measured compute, (steps, ranks) s of equal work, first that of nodes.

    every: s of compute that a measured step stands for; 0: a step of training.

    A step is stalled if it exceeds the rank's median by 4 sigmas of the jitter and by 5 %. The part
    of a stall that all ranks of a node share in a step is the node's; the rest is the rank's.
    """
    extra = seconds / np.median(seconds, axis=0) - 1.0
    sigma = -np.quantile(np.log1p(extra), 0.16, axis=0)  # stalls do not reach below the median
    limit = np.maximum(np.expm1(SURE * sigma), LEAST)
    extra = np.where(extra > limit, extra, 0.0)
    of = np.array(node_of_rank)
    nodes = [np.flatnonzero(of == node) for node in np.unique(of)]
    several = [ranks for ranks in nodes if len(ranks) > 1]
    shared = np.array([extra[:, ranks].min(axis=1) for ranks in several]).T  # (steps, nodes)
    for column, ranks in enumerate(several):
        both = shared[:, [column]]
        rest = extra[:, ranks] - both
        extra[:, ranks] = np.where(rest > limit[ranks] * (1.0 + both), rest, 0.0)
    return (*_law(NODE, shared, every), *_law(RANK, extra, every))


def _law(among: str, extra: Floats, every: float) -> Iterator[Stalls]:
    """Yield the law of the columns' `extra` shares, (steps, columns); nothing without stalls."""
    stalled = np.sort(extra[extra > 0.0])[::-1]
    if not len(stalled):
        return
    begins = int((np.diff(extra > 0.0, axis=0, prepend=False) & (extra > 0.0)).sum())
    count: Ints = np.unique(np.geomspace(1, len(stalled), MOST).round().astype(np.int64))[::-1]
    sure = np.minimum(count, max(1, int(CHANCE * len(stalled)))) - 1
    points = tuple(
        (significant(n / extra.size), significant(longer))
        for n, longer in zip(count.tolist(), stalled[sure].tolist(), strict=True)
    )
    steps = max(1, round(len(stalled) / begins))
    yield Stalls(among=among, every=every, steps=steps, points=points)
