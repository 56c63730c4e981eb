"""A lower bound of the iteration over all plans of a request."""

import numpy as np

from commsched.arrays import Floats
from commsched.exchange.pair import LIBRARY
from commsched.exchange.registry import find_method
from commsched.net.graph import Tensor
from commsched.planner.search.problem import Problem
from commsched.planner.search.traffic import least_seconds
from commsched.planner.space import Unit


def lower_bound(problem: Problem, *, by_ports: bool = False) -> float:
    """Return a lower bound of every candidate's iteration, s: the largest of

        B + F + A
        max over layers l of  r_l + h(N_l) + f_l
        max over layers l of  r_l + T_l + f_l

    B, F [s] = backward and forward; A [s] = applying; r_l [s] = when layer l's gradient is ready;
    N_l = elements that are ready then or later; f_l [s] = forward from l on, all of F if updates
    end the step; h(n) [s] = least time that buckets with n elements in all keep the exchange stream
    busy: at least c + g n for every line with c >= 0 below all methods' prices at every size. Nets
    with zeros or forced methods have T_l [s] instead: the least time for which the tensors of N_l
    keep a port busy according to `traffic`, or the library's own sum if that is faster; 0 for
    tensors that may have a lossy method. `by_ports`: all nets have T_l; only the library's own
    method is priced.
    Holds for any buckets and parts in any order, if ranks end an exchange together.
    """
    clock = problem.clock
    best = clock.floor(problem.request.net.numel)
    units = [unit for made in problem.tensors for unit in made.units]
    plain = not (by_ports or any(unit.sparse or unit.forced for unit in units))
    lines = _lines(*_cheapest(problem)) if plain else []
    traffic = np.zeros((len(units), 1)) if plain else _traffic(problem, units)
    numel = 0.0
    received = np.cumsum(traffic[::-1], axis=0).max(axis=1).tolist()
    late, forward = problem.late, sum(clock.forward)
    for unit, seconds in zip(reversed(units), received, strict=True):  # the last first
        numel += unit.numel
        busy = max([seconds, *(c + g * numel for c, g in lines)])
        tail = clock.remaining[unit.after] if late else forward
        best = max(best, unit.ready + busy + tail)
    return best


def _traffic(problem: Problem, units: list[Unit]) -> Floats:
    """Return the least s for which each whole tensor keeps a port busy, by argument: (units, a)."""
    request, tensors = problem.request, problem.request.net.tensors
    library = _library(problem)
    known: dict[tuple[int, int], Floats] = {}  # (identity of the law, elements) -> s
    lossy = request.lossy or request.force
    rows = []
    for unit in units:
        tensor = tensors[unit.pieces[0].tensor]
        key = id(tensor.sparsity), unit.numel
        if key not in known:
            least = least_seconds(tensor.sparsity, unit.numel, request.machine)
            known[key] = np.minimum(least, library * unit.numel)
        lost = lossy and _may_lose(problem, tensor)
        rows.append(np.zeros_like(known[key]) if lost else known[key])
    return np.array(rows)


def _may_lose(problem: Problem, tensor: Tensor) -> bool:
    """Tell whether the request allows a lossy method for a tensor."""
    forced = problem.request.force.get(tensor.name)
    if forced is not None:
        return not find_method(forced).lossless
    methods = problem.request.methods(problem.prices.group) if problem.request.lossy else ()
    return any(not m.lossless and problem.guard.tensor(m, tensor) for m in methods)


def _library(problem: Problem) -> float:
    """Return the least s per element of the library's own sum, whose messages are unknown."""
    number = problem.named(LIBRARY)
    if number < 0:
        return np.inf
    sizes, seconds = problem.prices.curve(number)
    return float((seconds[2].sum(axis=0) / sizes).min())


def _cheapest(problem: Problem) -> tuple[Floats, Floats]:
    """Return sizes, and for each size the least s of the exchange stream over the methods."""
    curves = [problem.prices.curve(method) for method in problem.prices.plain]
    sizes = np.unique(np.concatenate([sizes for sizes, _ in curves]))
    least = np.full(len(sizes), np.inf)
    for own, seconds in curves:
        stream = seconds[0].sum(axis=0) + seconds[2].sum(axis=0)
        least = np.minimum(least, np.interp(sizes, own, stream))
    return sizes, least


def _lines(sizes: Floats, least: Floats) -> list[tuple[float, float]]:
    """List the lines c + g n, c >= 0, that touch the prices from below."""
    found = [(0.0, float((least / sizes).min()))]
    for slope in np.diff(least) / np.diff(sizes):
        start = float((least - slope * sizes).min())
        if start >= 0.0:
            found.append((start, float(slope)))
    return found
