"""Espresso: each tensor's option by the iteration of the whole timeline, largest tensor first.

Source: Wang et al., "Hi-Speed DNN training with Espresso", EuroSys 2023.
"""

import numpy as np

from commsched.planner.baseline import baseline
from commsched.planner.search.prices import PricedRows
from commsched.planner.search.problem import Problem
from commsched.planner.space import Candidate, MethodChoice


@baseline("espresso")
def espresso(problem: Problem) -> Candidate:
    """Begin with the library's own all-reduce; keep the method with the least iteration.

    Tensors by size, the largest first, ties nearest the output first. A tensor whose exchange
    ends before a bubble is not changed, and bubbles are looked for again after each change. A
    method that is slower in encoding, exchange and decoding than another is not tried.
    """
    late = problem.early
    made = problem.tensors
    chosen = [problem.library(one) for one in made]
    order = sorted(range(len(made)), key=lambda i: (-made[i].numel, i))
    table = {m: _seconds(problem, m) for m in _numbers(problem)}
    critical = _critical(problem, chosen)
    for i in order:
        options = [m for m in problem.options(made[i]) if not _worse(table, m, i, chosen[i])]
        if not critical[i] or not options:
            continue
        options = [chosen[i], *options]
        choices = [MethodChoice(one, m) for one, m in zip(made, chosen, strict=True)]
        rows = problem.evaluator.rows([*choices, *(MethodChoice(made[i], m) for m in options)])
        index = np.repeat(np.arange(len(made))[:, None], len(options), axis=1)
        index[i] = len(made) + np.arange(len(options))
        seconds = problem.evaluator.iterations(rows, index, late)
        best = options[int(seconds.argmin())]
        if best != chosen[i]:
            chosen[i] = best
            critical = _critical(problem, chosen)
    return Candidate(tuple(MethodChoice(one, m) for one, m in zip(made, chosen, strict=True)), late)


def _seconds(problem: Problem, method: int) -> np.ndarray:
    """Return (tensors, 3) s of every tensor by one method: encode, exchange, decode."""
    made = problem.tensors
    rows: PricedRows = problem.prices.rows(made, [method] * len(made), 0.0)
    vote, encode, exchange, decode = rows.seconds.sum(axis=1)
    return np.stack([encode, vote + exchange, decode], axis=1)


def _numbers(problem: Problem) -> set[int]:
    """Return the methods that some tensor has or may have."""
    made = problem.tensors
    return {m for one in made for m in (*problem.options(one), problem.library(one))}


def _worse(table: dict[int, np.ndarray], method: int, tensor: int, than: int) -> bool:
    """Tell whether a method is nowhere faster for a tensor than another."""
    return bool((table[method][tensor] >= table[than][tensor]).all())


def _critical(problem: Problem, chosen: list[int]) -> list[bool]:
    """Tell for each tensor whether no bubble of the exchange stream follows its exchange."""
    choices = [MethodChoice(one, m) for one, m in zip(problem.tensors, chosen, strict=True)]
    rows = problem.evaluator.rows(choices)
    seconds = rows.seconds.sum(axis=1)
    free, last = 0.0, 0
    for i in range(len(choices)):
        begin = float(rows.ready[i] + seconds[1, i])
        if begin > free:
            last = i  # the stream was idle until now
        free = max(free, begin) + float(seconds[0, i] + seconds[2, i])
    return [i >= last for i in range(len(choices))]
