"""The error budget at run time: tensors over the budget fall back to dense, on all ranks together.

Per tensor, every rank adds up the squares of its lossy launches' wanted values and of their losses.
The ranks gather these sums during the next step; all ranks see equal numbers, so all change equal
launches after the same step.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from mpi4py import MPI

from commsched.arrays import Floats
from commsched.cost.price import method_seconds
from commsched.exchange.registry import find_method, legal_methods
from commsched.plan.model import Launch, Plan
from commsched.run.engine.engine import Engine
from commsched.run.engine.step_gather import StepGather
from commsched.timeline.header import Fallback


class BudgetWatch:
    """The watch over the lossy launches of the engine's plan, if the plan has an error budget."""

    def __init__(self, engine: Engine, comm: MPI.Intracomm) -> None:
        self._engine = engine
        self._gather = StepGather(comm, engine.board, "guard", "the norms")
        self.free = self._gather.free
        self._since = 0  # first step with the launches that are watched
        self.fallbacks: list[Fallback] = []

    def watch(self, since: int) -> None:
        """Watch the lossy launches of the engine's plan, from step `since` on."""
        plan, buckets = self._engine.plan, self._engine.buckets
        self._gather.take_last()
        self._since = since
        launches = plan.launches if plan.max_error else ()
        watched = {i: launch for i, launch in enumerate(launches) if _watched(launch)}
        buckets.losses.pieces = {
            i: [here for *_, here in launch.places] for i, launch in watched.items()
        }
        buckets.losses.squares.clear()
        names = [piece.tensor for launch in watched.values() for piece in launch.pieces]
        self._names = list(dict.fromkeys(names))
        place = {name: i for i, name in enumerate(self._names)}
        self._rows = {
            i: np.array([place[piece.tensor] for piece in launch.pieces])
            for i, launch in watched.items()
        }

    def after(self, step: int) -> Plan | None:
        """Take the sums of an earlier step, and begin to gather those of the step before `step`.

        Call it on all ranks when the compute of `step` is over: then the exchanges of the previous
        step are over, too. If a tensor exceeded its budget, return the plan from the next step on.
        """
        if not self._names:
            return None
        gathered = self._gather.take_last()
        if gathered is not None:
            measured, every = gathered
            errors, budget = self._errors(every.sum(axis=0)), self._engine.plan.max_error
            out = {name: error for name, error in errors if not error <= budget}
            if out:
                return self._dense(out, measured, step + 1)
        if step - 1 >= self._since:
            self._ask(step - 1)
        return None

    def _ask(self, step: int) -> None:
        norms = self._engine.buckets.losses.squares
        sums = np.zeros((2, len(self._names)))
        for launch, rows in self._rows.items():
            for total, squares in zip(sums, norms.pop((step, launch)), strict=True):
                np.add.at(total, rows, squares)
        self._gather.ask(step, sums)

    def _errors(self, sums: Floats) -> Iterator[tuple[str, float]]:
        """Return each tensor's relative error from (2, tensors) squares: wanted values, losses."""
        wanted, left = sums.tolist()
        for name, w, e in zip(self._names, wanted, left, strict=True):
            share = (e / w) ** 0.5 if w > 0 else 0.0 if e == 0 else math.inf
            yield name, share if math.isfinite(share) else math.inf

    def _dense(self, out: Mapping[str, float], step: int, since: int) -> Plan:
        """Return the plan with dense launches for some tensors."""
        plan = self._engine.plan
        changed = {
            i: dense_method(plan, plan.launches[i])
            for i in self._rows
            if any(piece.tensor in out for piece in plan.launches[i].pieces)
        }
        for name, share in out.items():
            mine = [i for i in changed if any(p.tensor == name for p in plan.launches[i].pieces)]
            self.fallbacks.append(
                Fallback(
                    tensor=name,
                    step=step,
                    error=share if math.isfinite(share) else None,
                    budget=plan.max_error,
                    launches=tuple(plan.launches[i].name for i in mine),
                    methods=tuple(plan.launches[i].method for i in mine),
                    dense=tuple(changed[i] for i in mine),
                    since=since,
                )
            )
        launches = tuple(
            replace(launch, method=changed[i], reason=None) if i in changed else launch
            for i, launch in enumerate(plan.launches)
        )
        return replace(plan, launches=launches)


def _watched(launch: Launch) -> bool:
    method = find_method(launch.method)
    return not method.lossless and method.measurable


def dense_method(plan: Plan, launch: Launch) -> str:
    """Return a launch's cheapest dense pair except MPI's own, whose bits may differ by rank."""
    group, spec = plan.group(launch), plan.spec(launch)
    found = [
        (method_seconds(method, spec, plan.machine, group), method.name)
        for method in legal_methods(group, lossless=True)
        if not (method.compresses or method.library)
    ]
    return min(found)[1]
