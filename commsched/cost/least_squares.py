"""Least squares of errors of logarithms, damped towards what was known before."""

from collections.abc import Callable, Sequence

import numpy as np

from commsched.arrays import Floats

NOISE = 0.05  # expected error of the logarithm of a measured time
ROUNDS = 12  # of errors that take long to compute
RENEWED = 6  # rounds after which the slopes are computed again
STEP = 0.02  # of a logarithm, for the slopes
NEAR = 0.1  # change of the logarithms up to which the slopes stay valid
DONE = 0.003  # change of the logarithms that ends the search
HALVED = 4  # most halvings of a move that makes the errors larger
OUTLIER = 3.0  # multiple of NOISE beyond which errors count linearly


TRIED = 2  # the search continues from this many starts of the smallest cost


def least_squares(
    errors: Callable[[Floats], Floats],
    doubt: Floats,
    starts: Sequence[Floats] = (),
    rounds: int = ROUNDS,
) -> Floats:
    """Return the logarithms of factors, (n,), with the smallest errors; 0 is what was known.

    doubt: (n,), the expected error of each logarithm; errors beyond OUTLIER count linearly.
    rounds: moves, at most.
    Source: Gauss-Newton with Huber's weights (Huber, "Robust Statistics", 1981) and a normal prior;
    slopes are corrected by each move as Broyden does ("A class of methods for solving nonlinear
    simultaneous equations", 1965). Errors with several valleys are searched from the best of
    `starts`, too.
    """

    def cost(logs: Floats, errors: Floats) -> float:
        size, bend = np.abs(errors) / NOISE, OUTLIER
        far = np.where(size <= bend, size**2, bend * (2 * size - bend)).sum()
        return float(far + (logs**2 / doubt**2).sum())

    near = sorted(starts, key=lambda logs: cost(logs, errors(logs)))[:TRIED]
    begin = np.zeros(len(doubt)), *near
    ends = [_descended(errors, doubt, logs, cost, rounds) for logs in begin]
    return min(ends, key=lambda logs: cost(logs, errors(logs))) if near else ends[0]


def _descended(
    errors: Callable[[Floats], Floats],
    doubt: Floats,
    logs: Floats,
    cost: Callable[[Floats, Floats], float],
    rounds: int,
) -> Floats:
    """Descend from one start."""
    here = errors(logs)
    slopes, far, stuck = np.zeros((0, 0)), True, False
    for number in range(rounds):
        fresh = stuck or (far and number % RENEWED == 0)
        if fresh:
            slopes = np.stack(
                [(errors(logs + STEP * unit) - here) / STEP for unit in np.eye(len(logs))]
            )
        weight = _weight(here)
        normal = slopes * weight @ slopes.T + np.diag(doubt**-2.0)
        move = -np.linalg.solve(normal, slopes @ (weight * here) + logs / doubt**2)
        if not move.any():
            break
        move *= min(1.0, 1.0 / np.abs(move).max())
        there = errors(logs + move)
        for _ in range(HALVED):
            if cost(logs + move, there) < cost(logs, here):
                break
            move /= 2
            there = errors(logs + move)
        slopes += np.outer(move, there - here - move @ slopes) / (move @ move)
        better = cost(logs + move, there) < cost(logs, here)
        if better:
            logs, here = logs + move, there
        far, stuck = bool(np.abs(move).max() > NEAR), not better
        if (fresh and stuck) or (better and np.abs(move).max() < DONE):
            break
    return logs


def _weight(errors: Floats) -> Floats:
    """Return the weight of each error in the least squares."""
    found: Floats = np.minimum(1.0, OUTLIER * NOISE / np.maximum(np.abs(errors), 1e-12)) / NOISE**2
    return found
