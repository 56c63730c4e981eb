"""The watch over densities: it notices gradients or sums whose density differs from the plan's.

Ranks gather their counts of non-zeros, so that all notice a change in the same step.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from commsched.arrays import Array, Floats
from commsched.exchange.registry import find_method
from commsched.kernels.merge import Listed, ends
from commsched.kernels.select import count_nonzero
from commsched.net.graph import Net
from commsched.net.sparsity import DENSE, Sparsity
from commsched.plan.model import Launch, Plan
from commsched.run.engine.engine import Engine
from commsched.run.engine.step_gather import StepGather

FIRST, EVERY = 4, 8  # the first steps under a plan are all counted, later ones every EVERY-th
PATIENCE = 2  # consecutive differing steps after which the ranks plan anew
APART = 1.25  # factor; densities that differ by less count as those of the plan
LEAST = 1024  # elements of a tensor whose density matters
FULL = 0.99  # density from which a gradient counts as dense


class Thinned(NamedTuple):
    """The measured densities that differ from the plan's."""

    step: int  # the last counted step
    net: Net  # with the counted densities
    words: str  # the tensor that differs most


class DensityWatch:
    """Counts the non-zeros of gradients and of their sums; see `BudgetWatch` for its calls."""

    def __init__(self, engine: Engine, comm: MPI.Intracomm) -> None:
        self._engine, self._ranks = engine, comm.size
        self._gather = StepGather(comm, engine.board, "density", "the numbers of non-zeros")
        self._counts: dict[tuple[int, int, bool], list[int]] = {}  # (step, launch, whether summed)
        engine.buckets.observer = self

    def free(self) -> None:
        """End the counting; all ranks call it."""
        self._engine.buckets.observer = None
        self._gather.free()

    def watch(self, since: int) -> None:
        """Compare with the densities of the engine's plan, from step `since` on."""
        self._gather.take_last()
        self._since, self._apart = since, 0
        self._counts.clear()
        plan = self._engine.plan
        self._names = [n for n, tensor in plan.net.tensors.items() if tensor.numel >= LEAST]
        self._place = {name: i for i, name in enumerate(self._names)}
        self._known = np.array([_exact(plan, name) for name in self._names], np.bool_)

    def sees(self, step: int, launch: int, values: Array | Listed, *, summed: bool) -> None:
        """Count a bucket's non-zeros; called in the thread that encoded or decoded the bucket."""
        if not self._counted(step):
            return
        places = [here for *_, here in self._engine.plan.launches[launch].places]
        self._counts[step, launch, summed] = _counts(values, places)

    def _counted(self, step: int) -> bool:
        late = step - self._since
        return late >= 0 and (late < FIRST or late % EVERY == 0)

    def after(self, step: int) -> Thinned | None:
        """Compare the last counts, and begin to gather those of the previous step."""
        gathered = self._gather.take_last()
        if gathered is not None:
            counted, every = gathered
            found = self._compared(counted, every.mean(axis=0))
            if found is not None:
                return found
        if self._counted(step - 1):
            self._gather.ask(step - 1, self._mine(step - 1))
        return None

    def _mine(self, step: int) -> Floats:
        """Sum the counts of a step over the pieces of each tensor: (2, tensors)."""
        found = np.zeros((2, len(self._names)))
        for index, launch in enumerate(self._engine.plan.launches):
            for summed in (False, True):
                counts = self._counts.pop((step, index, summed), [0] * len(launch.pieces))
                self._add(found[int(summed)], launch, counts)
        return found

    def _add(self, total: Floats, launch: Launch, counts: Sequence[int]) -> None:
        for piece, count in zip(launch.pieces, counts, strict=True):
            if piece.tensor in self._place:
                total[self._place[piece.tensor]] += count

    def _compared(self, step: int, counts: Floats) -> Thinned | None:
        """Return densities that differed from the plan's for long enough: counts (2, tensors)."""
        tensors = [self._engine.plan.net.tensors[name] for name in self._names]
        sizes = np.array([tensor.numel for tensor in tensors])
        found = np.maximum(counts, 1.0) / sizes
        merged = np.array([1, self._ranks])
        planned = np.array([t.sparsity.after(merged) for t in tensors]).reshape(-1, 2).T
        ratios = found / planned
        ratios[1, ~self._known] = 1.0  # inexact sums tell no density
        worst = np.abs(np.log(ratios)).max(axis=0, initial=0.0)
        self._apart = self._apart + 1 if (worst > np.log(APART)).any() else 0
        if self._apart < PATIENCE:
            return None
        at = int(worst.argmax())
        words = f"tensor {self._names[at]!r} has density {found[0, at]:.3g}"
        if self._known[at]:
            words += f", and {found[1, at]:.3g} summed"
        words += f", planned {planned[0, at]:.3g} and {planned[1, at]:.3g}"
        laws = {
            name: _law(one, total if known else None, self._ranks)
            for name, one, total, known in zip(
                self._names, *found.tolist(), self._known.tolist(), strict=True
            )
        }
        return Thinned(step, _with_laws(self._engine.plan.net, laws), words)


def _exact(plan: Plan, name: str) -> bool:
    """Tell whether every launch of a tensor sums all of its gradient."""
    return all(
        find_method(launch.method).lossless
        for launch in plan.launches
        if any(piece.tensor == name for piece in launch.pieces)
    )


def _counts(values: Array | Listed, places: Sequence[slice]) -> list[int]:
    """Count the non-zeros at each place of a bucket."""
    if isinstance(values, Listed):
        cuts = ends(values.index, [edge for run in places for edge in (run.start, run.stop)])
        return [stop - start for start, stop in zip(cuts[::2], cuts[1::2], strict=True)]
    return [count_nonzero(values[run]) for run in places]


def _law(one: float, total: float | None, ranks: int) -> Sparsity:
    """Return the sparsity law of a rank's density and, if it is known, that of all ranks' sum."""
    if one >= FULL:
        return DENSE
    if total is None or ranks == 1:
        return Sparsity(law="uniform", density=one)
    curve = ((1.0, one), (float(ranks), min(max(total, one), 1.0)))
    return Sparsity(law="curve", density=one, curve=curve)


def _with_laws(net: Net, laws: dict[str, Sparsity]) -> Net:
    """Return the net with the given sparsity laws of tensors."""
    layers = (
        replace(
            layer,
            tensors=tuple(replace(t, sparsity=laws.get(t.name, t.sparsity)) for t in layer.tensors),
        )
        for layer in net.layers
    )
    return replace(net, layers=tuple(layers))
