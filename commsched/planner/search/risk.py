"""The expected increase of an iteration if prices err as they did in the calibration.

The prices of small exchanges err most: threads hand over, ranks come late. A plan of many small
exchanges, or one that only just hides its exchanges, suffers more than its prediction shows.
"""

from zlib import crc32

import numpy as np

from commsched.arrays import Floats, Ints
from commsched.machine.fabric import HeldOut
from commsched.machine.trust import alike
from commsched.planner.request import Request
from commsched.planner.search.prices import PricedRows
from commsched.planner.search.problem import Problem
from commsched.planner.space import Candidate

DRAWS = 16
NEAREST = 4  # held-out exchanges of similar length whose errors an exchange may have


class Risk:
    """The errors of a calibration's held-out cells, and their effect on candidates.

    An exchange predicted to last T [s] lasts T / (1 + e), votes in proportion; e is the error
    (predicted - measured) / measured of one of the NEAREST held-out cells, those whose predicted
    seconds are nearest to T by ratio. All launches of a method err alike, methods independently.
    Coding lasts as predicted, since its errors are not known.
    """

    def __init__(self, cells: tuple[HeldOut, ...]) -> None:
        assert cells
        ordered = sorted(cells, key=lambda cell: cell.predicted)
        self._sizes = np.log([cell.predicted for cell in ordered])
        self._factors = np.array([1.0 / (1.0 + cell.error) for cell in ordered])
        self._count = min(NEAREST, len(ordered))
        self._draws: dict[str, Ints] = {}

    @classmethod
    def of(cls, request: Request) -> "Risk | None":
        """Return the risk on a request's machine; None if its file records no errors."""
        cells = alike(request.machine, request.net.occupies_cores)
        return cls(cells) if cells else None

    def mean(self, rows: PricedRows) -> PricedRows:
        """Return the rows with their expected seconds."""
        return rows._replace(seconds=_longer(rows.seconds, self._near(rows).mean(axis=0)))

    def extra(self, problem: Problem, candidate: Candidate) -> float:
        """Return the mean s by which a candidate's iteration exceeds the prediction."""
        evaluator = problem.evaluator
        rows = evaluator.rows(candidate.choices)
        size = len(rows.ready)
        near, drawn = self._near(rows), np.zeros((DRAWS, size), np.int64)
        for k, choice in enumerate(candidate.choices):
            drawn[:, k] = self._drawn(problem.prices.methods[choice.method].name)
        factors = np.take_along_axis(near, drawn, axis=0)  # (draws, rows)
        seconds = _longer(rows.seconds[:, :, np.newaxis, :], factors)
        every = PricedRows._make(np.tile(column, DRAWS) for column in rows)
        every = every._replace(seconds=seconds.reshape(*rows.seconds.shape[:2], -1))
        index = np.arange(size - 1)[:, np.newaxis] + size * np.arange(DRAWS)
        found = evaluator.iterations(every, index, candidate.late)
        return float(found.mean()) - evaluator.one(candidate)

    def _near(self, rows: PricedRows) -> Floats:
        """Return the factors that each launch may have: (count, rows)."""
        lasting = rows.seconds[0].sum(axis=0) + rows.seconds[2].sum(axis=0)
        logs = np.log(np.maximum(lasting, 1e-12))
        away = np.abs(self._sizes[:, np.newaxis] - logs)
        found: Floats = self._factors[np.argsort(away, axis=0, kind="stable")[: self._count]]
        return found

    def _drawn(self, method: str) -> Ints:
        """Return which of their factors a method's launches have in each draw: (draws,)."""
        if method not in self._draws:
            again = -(-DRAWS // self._count)
            every = np.tile(np.arange(self._count), again)[:DRAWS]
            self._draws[method] = np.random.default_rng(crc32(method.encode())).permutation(every)
        return self._draws[method]


def _longer(seconds: Floats, factors: Floats) -> Floats:
    """Return seconds (4, phases, ...) with votes and exchanges multiplied by factors (...)."""
    vote, encode, exchange, decode = seconds
    return np.stack(np.broadcast_arrays(vote * factors, encode, exchange * factors, decode))
