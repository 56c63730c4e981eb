"""The times of a plan's exchanges, phase by phase: predicted, or reduced from spans."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commsched.arrays import Floats
from commsched.exchange.registry import phases_of
from commsched.plan.model import Plan
from commsched.program.model import Kind
from commsched.simulate.engine import simulate

TINY = 1e-6  # s, resolution of clocks
NONE = np.zeros(0)
APART = 100.0  # s between cells in the simulation


class CellTimes(NamedTuple):
    """Seconds of each phase of each cell, (phases,) each: medians over steps."""

    cell: npt.NDArray[np.int64]  # index of the cell of each phase

    exchange: Floats  # from the last rank's start to the last rank's end
    encode: Floats  # mean over ranks
    decode: Floats  # mean over ranks
    # mean s from an exchange's end to the start of its decode on a rank, exponentially distributed
    handover: float = 0.0
    jitter: float = 0.0  # sigma of the logarithm of coding on a rank, over ranks and steps
    # processor time, s, of a coding operation: the median of a rank, the mean of the ranks
    coding: float = 0.0
    processor: Floats = NONE  # s of a rank's cores that each exchange takes, without coding
    interrupts: float = 0.0  # cores that interrupts take from a rank that computes and exchanges

    @property
    def whole(self) -> list[float]:
        """Return the seconds of all exchanges of each cell."""
        seconds: list[float] = np.bincount(self.cell, self.exchange).tolist()
        return seconds


def predict(plan: Plan) -> CellTimes:
    """Simulate the times of separate cells: long pauses keep cells apart on any machine."""
    layers = tuple(replace(layer, backward=APART) for layer in plan.net.layers)
    return simulated(replace(plan, net=replace(plan.net, layers=layers)))


def simulated(plan: Plan) -> CellTimes:
    """Simulate the times of the plan without changing its pauses."""
    cell, kinds = kinds_of(plan)
    table = np.zeros((2, len(kinds), 1, plan.machine.size))
    for placed in simulate(plan, 1).placed:
        if placed.op.name in kinds:
            table[:, kinds[placed.op.name], 0, placed.ranks] = placed.start, placed.end
    return times_of(cell, table)


def kinds_of(plan: Plan) -> tuple[npt.NDArray[np.int64], dict[str, int]]:
    """Return the launch of each phase, and the row of each exchange, encode and decode by name."""
    cells, stems = [], []
    for i, launch in enumerate(plan.launches):
        for phase in phases_of(plan, i):
            cells.append(i)
            stems.append(f"{launch.name}/{phase.name}" if phase.name else launch.name)
    kinds = (Kind.EXCHANGE, Kind.ENCODE, Kind.DECODE)
    names = [f"{stem}/{kind}" for kind in kinds for stem in stems]
    return np.array(cells), {name: row for row, name in enumerate(names)}


def times_of(cell: npt.NDArray[np.int64], table: Floats) -> CellTimes:
    """Reduce spans, (start, end) x (kinds * phases) x steps x ranks, to times of phases."""
    start, end = table
    last = np.median(end.max(axis=-1) - start.max(axis=-1), axis=-1)
    length = np.median((end - start).mean(axis=-1), axis=-1)
    count = len(cell)
    return CellTimes(
        cell=cell,
        exchange=last[:count],
        encode=length[count : 2 * count],
        decode=length[2 * count :],
    )


def coding_jitter(coded: Floats) -> float:
    """Return the sigma of the logarithm of coding on a rank, without the part all ranks share.

    coded: (kinds, steps, ranks) s. Each counts by its seconds, because ranks wait for long ones.
    """
    ranks = coded.shape[-1]
    if ranks == 1:
        return 0.0
    logs = np.log(np.maximum(coded, TINY))
    far = (logs - logs.mean(axis=-1, keepdims=True)) * np.sqrt(ranks / (ranks - 1))
    weights = np.maximum(coded, TINY).ravel()
    low, high = np.quantile(far.ravel(), (0.16, 0.84), weights=weights, method="inverted_cdf")
    return float(high - low) / 2  # of a normal law
