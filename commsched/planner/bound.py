"""A lower bound of the iteration over all plans of a request."""

import numpy as np
import numpy.typing as npt

from commsched.planner.problem import Problem

Floats = npt.NDArray[np.float64]


def lower_bound(problem: Problem) -> float:
    """Seconds below which no candidate's iteration lies: the most of

        B + F + A
        max over layers l of  r_l + h(N_l) + f_l

    B, F [s] backward and forward; A [s] applying; r_l [s] when layer l's gradient is ready; N_l
    the elements that are ready then or later; f_l [s] the forward pass from l on, all of F where
    updates end the step; h(n) [s] the least that buckets of n elements in all keep the exchange
    stream busy, which is at least c + g n for every line with c >= 0 that no method's price falls
    below at any size. A net with sparse tensors has the least price of each whole tensor instead.
    Holds for buckets and parts of any kind in any order, where ranks end an exchange together.
    """
    clock = problem.clock
    total = problem.request.graph.numel * clock.apply
    best = sum(clock.backward) + sum(clock.forward) + total
    units = [unit for made in problem.tensors for unit in made.units]
    if any(unit.sparse or unit.forced for unit in units):
        return best
    sizes, least = _cheapest(problem)
    lines = _lines(sizes, least)
    numel = 0.0
    for unit in reversed(units):  # the last that is ready comes first
        numel += unit.numel
        busy = max(c + g * numel for c, g in lines)
        tail = clock.remaining[unit.after] if problem.may_be_late else sum(clock.forward)
        best = max(best, unit.ready + busy + tail)
    return best


def _cheapest(problem: Problem) -> tuple[Floats, Floats]:
    """Sizes and the least seconds of the exchange stream at each, over the methods."""
    curves = [problem.prices.curve(method) for method in problem.prices.plain]
    sizes = np.unique(np.concatenate([sizes for sizes, _ in curves]))
    least = np.full(len(sizes), np.inf)
    for own, seconds in curves:
        stream = seconds[0].sum(axis=0) + seconds[2].sum(axis=0)
        least = np.minimum(least, np.interp(sizes, own, stream))
    return sizes, least


def _lines(sizes: Floats, least: Floats) -> list[tuple[float, float]]:
    """Lines c + g n, c >= 0, that touch the prices from below."""
    found = [(0.0, float((least / sizes).min()))]
    for slope in np.diff(least) / np.diff(sizes):
        start = float((least - slope * sizes).min())
        if start >= 0.0:
            found.append((start, float(slope)))
    return found
