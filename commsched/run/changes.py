"""Changes of plan between two steps of a run: on all ranks together, nothing is lost."""

from typing import Any

from mpi4py import MPI

from commsched.plan import Plan
from commsched.run import agree
from commsched.run.engine import Engine
from commsched.run.guard import Guard
from commsched.run.measured import Measurement
from commsched.run.worker import Worker


class Changes:
    """Asks after every step whether the plan changes, and changes it."""

    def __init__(
        self, engine: Engine, comm: MPI.Intracomm, worker: Worker, measurement: Measurement
    ) -> None:
        self._engine, self._comm = engine, comm
        self._worker, self._measurement = worker, measurement
        self._guard = Guard(engine, comm) if engine.plan.max_error else None
        self._switches: list[dict[str, Any]] = []

    def after(self, step: int) -> bool:
        """Look at what was measured; True where the next step follows another plan."""
        made = None if self._guard is None else self._guard.after(step)
        if made is None:
            return False
        assert self._guard is not None
        count = sum(fall.since == step + 1 for fall in self._guard.fallbacks)
        self._switch(made, step, f"{count} tensors left their error budget")
        return True

    def _switch(self, plan: Plan, step: int, why: str) -> None:
        """Follow another plan after `step`, once everything under way is over.

        What old launches have kept of their gradients joins the next gradients.
        """
        self._engine.drain()
        agree.check_plan(plan, self._comm)
        kept = self._engine.follow(plan, step)
        self._worker.follow(plan, kept)
        self._measurement.follow(plan)
        if self._guard is not None:
            self._guard.watch(step + 1)
        self._switches.append({"step": step + 1, "plan": plan.hash, "why": why})

    def close(self) -> None:
        """Bring what is under way to its end; on all ranks."""
        if self._guard is not None:
            self._guard.free()

    def report(self) -> dict[str, Any]:
        """What changed, for the timeline; nothing where nothing did."""
        found: dict[str, Any] = {}
        if self._guard is not None:
            found["fallbacks"] = [fall.data() for fall in self._guard.fallbacks]
        if self._switches:
            found["switches"] = self._switches
        return found
