"""Improvement of a candidate by single changes, and changes of two neighbours, until none helps."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from commsched.planner.search.problem import Problem
from commsched.planner.search.rivals import LONG
from commsched.planner.space import Bucket, Candidate, MethodChoice, bucket

STEPS = (1, 2, 4, 8, 16, 32)  # units that a boundary moves, and buckets that a launch moves
CUTS = 7  # places at which a bucket is split
PAIRED = 4  # methods tried for each of two neighbours when both change
GAIN = 1e-4  # share of the iteration that a change must save to be worth more launches
SAME = 1e-9  # share of an iteration below which two are equal


class Change(NamedTuple):
    """A replacement of the launches [start, stop) of a candidate."""

    start: int
    stop: int
    choices: tuple[MethodChoice, ...]


def improved(
    problem: Problem,
    first: Candidate,
    over: Callable[[], bool],
    methods_only: bool = False,
    gain: float = GAIN,
    note: Callable[[float, Candidate], None] = lambda seconds, candidate: None,
) -> Candidate:
    """Follow the best changes until none helps, or until `over`; `note` each better candidate."""
    best, seconds = first, problem.evaluator.one(first)
    while not over():
        every = _changes(problem, best.choices, methods_only)
        changes = [change for change in every if all(map(problem.allows, change.choices))]
        if not changes:
            break
        found = evaluated(problem, best, changes)
        at = int(found.argmin())
        if not found[at] < seconds * (1 - gain):
            break
        best = applied(problem, best, changes, found, seconds * (1 - gain))
        seconds = problem.evaluator.one(best)
        note(seconds, best)
    return best


def tidied(problem: Problem, first: Candidate) -> Candidate:
    """Reduce a candidate's effort, first its launches, as long as its iteration stays equal."""
    best, limit = first, problem.evaluator.one(first) * (1 + SAME)
    while (fewer := _freely(problem, best, _merges(best.choices), limit)) is not None:
        best = fewer
    if len(best.choices) > LONG:
        return best
    return _freely(problem, best, _shorter(problem, best.choices), limit) or best


def _freely(
    problem: Problem, base: Candidate, every: Iterable[Change], limit: float
) -> Candidate | None:
    """Return the candidate with the first change that leaves the iteration within `limit` s."""
    changes = [change for change in every if all(map(problem.allows, change.choices))]
    free: list[Change] = []
    if changes:
        found = evaluated(problem, base, changes)
        for change, seconds in zip(changes, found.tolist(), strict=True):
            if seconds <= limit and (not free or free[-1].stop <= change.start):
                free.append(change)
    while free and problem.evaluator.one(_with(base, free)) > limit:
        free = free[: len(free) // 2]
    return _with(base, free) if free else None


def _merges(choices: Sequence[MethodChoice]) -> Iterator[Change]:
    for k, (a, b) in enumerate(pairwise(choices)):
        if not (a.bucket.forced or b.bucket.forced):
            both = bucket((*a.bucket.units, *b.bucket.units))
            yield Change(k, k + 2, (MethodChoice(both, a.method),))


def _shorter(problem: Problem, choices: Sequence[MethodChoice]) -> Iterator[Change]:
    """Yield lossless methods for each launch: all if it is lossy, else shorter ones; best first."""
    methods = problem.prices.methods
    for k, seconds in enumerate(problem.alone([choice.bucket for choice in choices])):
        made, now = choices[k]
        if not np.isfinite(seconds[now]):  # a method that is not on the problem's list
            continue
        for other in sorted(problem.options(made), key=seconds.__getitem__):
            less = seconds[other] < seconds[now] or not methods[now].lossless
            if less and methods[other].lossless:
                yield Change(k, k + 1, (MethodChoice(made, other),))


def applied(
    problem: Problem,
    base: Candidate,
    changes: Sequence[Change],
    found: np.ndarray,
    below: float,
) -> Candidate:
    """Apply the best change and all changes that do not touch it and bring the iteration `below` s.

    If they do not help together, apply the best change alone.
    """
    order = np.argsort(found, kind="stable")
    chosen: list[Change] = []
    for i in order[:64].tolist():
        change = changes[i]
        if found[i] >= below:
            break
        if all(change.stop < c.start or c.stop < change.start for c in chosen):
            chosen.append(change)
    alone = _with(base, chosen[:1])
    if len(chosen) == 1:
        return alone
    together = _with(base, chosen)
    least = float(found[order[0]])
    return together if problem.evaluator.one(together) < least else alone


def _with(base: Candidate, changes: Sequence[Change]) -> Candidate:
    choices = list(base.choices)
    for change in sorted(changes, reverse=True, key=lambda c: c.start):
        choices[change.start : change.stop] = change.choices
    return Candidate(tuple(choices), base.late)


def evaluated(problem: Problem, base: Candidate, changes: Sequence[Change]) -> np.ndarray:
    """Return (changes,) s of the iteration with each change alone."""
    size = len(base.choices)
    new = [choice for change in changes for choice in change.choices]
    rows = problem.evaluator.rows([*base.choices, *new])
    nothing = size + len(new)
    deepest = max(size + len(c.choices) - (c.stop - c.start) for c in changes)
    index = np.full((len(changes), deepest), nothing)
    whole = np.arange(size)
    at = size
    for line, change in zip(index, changes, strict=True):
        end = change.start + len(change.choices)
        line[: change.start] = whole[: change.start]
        line[change.start : end] = np.arange(at, at + len(change.choices))
        line[end : end + size - change.stop] = whole[change.stop :]
        at += len(change.choices)
    return problem.evaluator.iterations(rows, np.ascontiguousarray(index.T), base.late)


def _changes(
    problem: Problem, choices: Sequence[MethodChoice], methods_only: bool
) -> Iterator[Change]:
    for k, (made, method) in enumerate(choices):
        for other in problem.options(made):
            if other != method:
                yield Change(k, k + 1, (MethodChoice(made, other),))
        if methods_only:
            continue
        yield from _splits(k, made, method)
        for step in STEPS:
            if k + step < len(choices):
                passed = tuple(choices[k + 1 : k + step + 1])
                yield Change(k, k + step + 1, (*passed, choices[k]))
                if step > 1:
                    passed = tuple(choices[k : k + step])
                    yield Change(k, k + step + 1, (choices[k + step], *passed))
    for k in range(0 if methods_only else len(choices) - 1):
        yield from _pairs(problem, k, choices[k], choices[k + 1])


def _splits(k: int, made: Bucket, method: int) -> Iterator[Change]:
    size = len(made.units)
    for cut in sorted({round(size * i / (CUTS + 1)) for i in range(1, CUTS + 1)} | {1, size - 1}):
        if 0 < cut < size:
            parts = bucket(made.units[:cut]), bucket(made.units[cut:])
            yield Change(k, k + 1, tuple(MethodChoice(part, method) for part in parts))


def _pairs(problem: Problem, k: int, first: MethodChoice, second: MethodChoice) -> Iterator[Change]:
    """Yield changes that merge two neighbours, move their boundary, or change both methods."""
    a, b = first.bucket, second.bucket
    methods = sorted({first.method, second.method})
    if a.forced or b.forced:
        return
    union = (*a.units, *b.units)
    whole = bucket(union)
    for method in problem.options(whole):
        yield Change(k, k + 2, (MethodChoice(whole, method),))
    for step in STEPS:
        for cut in (len(a.units) - step, len(a.units) + step):
            if 0 < cut < len(union):
                left, right = bucket(union[:cut]), bucket(union[cut:])
                yield Change(
                    k, k + 2, (MethodChoice(left, first.method), MethodChoice(right, second.method))
                )
                for method in methods if len(methods) > 1 else ():
                    yield Change(
                        k, k + 2, (MethodChoice(left, method), MethodChoice(right, method))
                    )
    near, others = (
        [m for m in problem.options(made) if m not in methods][:PAIRED] for made in (a, b)
    )
    for one in near:
        for other in others:
            yield Change(k, k + 2, (MethodChoice(a, one), MethodChoice(b, other)))
