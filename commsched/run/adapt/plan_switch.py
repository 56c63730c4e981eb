"""Changes of plan between two steps of a run: all ranks change together, and nothing is lost."""

from collections.abc import Callable
from dataclasses import replace

from mpi4py import MPI

from commsched.errors import Agreed, CommschedError
from commsched.machine.model import Machine
from commsched.plan import file as plan_file
from commsched.plan.model import Plan
from commsched.program.launch_ops import check_can_leave
from commsched.program.registry import STRATEGIES
from commsched.run.adapt.density import DensityWatch, Thinned
from commsched.run.adapt.drift import Drift, Drifted, explains, probe_nodes, refit_machine
from commsched.run.adapt.error_budget import BudgetWatch
from commsched.run.engine.board import WaitStatus
from commsched.run.engine.engine import Engine
from commsched.run.engine.measurement import Measurement
from commsched.run.engine.worker import GradientSource
from commsched.run.job import agree
from commsched.run.job.clock import now
from commsched.timeline.header import Fallback, Switch
from commsched.timeline.summary import fallback_sentence

# (current plan, machine as measured now, tensors whose methods must not change) -> new plan
Replan = Callable[[Plan, Machine, frozenset[str]], Plan]


PLANNING = 20.0  # s that rank 0 may take to plan beyond the deadline of a wait


class Changes:
    """The decision after every step whether the plan changes, and the change."""

    def __init__(
        self,
        engine: Engine,
        comm: MPI.Intracomm,
        source: GradientSource,
        measurement: Measurement | None = None,
        replan: Replan | None = None,
    ) -> None:
        self._engine, self._comm = engine, comm
        self._source, self._measurement = source, measurement
        self._replan = replan
        self._guard: BudgetWatch | None = None
        self._drift = Drift(engine, comm) if replan else None
        self._density = DensityWatch(engine, comm) if replan else None
        self._switches: list[Switch] = []
        self.watch(0)

    def watch(self, since: int) -> None:
        """Watch the engine's plan from step `since` on; all ranks call it."""
        plan = self._engine.plan
        if self._guard is None and plan.max_error and STRATEGIES[plan.strategy].sums_every_step:
            self._guard = BudgetWatch(self._engine, self._comm)
        for watcher in (self._guard, self._density, self._drift):
            if watcher is not None:
                watcher.watch(since)

    def after(self, step: int) -> bool:
        """Examine the measurements of a step; True if the next step follows another plan."""
        made = None if self._guard is None else self._guard.after(step)
        thinned = None if self._density is None else self._density.after(step)
        drifted = None if self._drift is None else self._drift.after(step)
        if made is not None:
            assert self._guard is not None
            left = sum(fall.since == step + 1 for fall in self._guard.fallbacks)
            why = f"{left} tensor{'s' if left > 1 else ''} left the error budget"
            self.switch(made, step, why)
        elif thinned is not None:  # checked before drift, because densities change the seconds
            self._planned_for(thinned, step)
        elif drifted is not None:
            self._planned_anew(drifted, step)
        return not (made is None and thinned is None and drifted is None)

    def _planned_for(self, thinned: Thinned, step: int) -> None:
        """Plan on rank 0 for the counted densities, and follow the new plan."""
        self._drain(step)
        begun, old = now(), self._engine.plan
        self._waits(step, PLANNING)
        made = self._plan_on_rank_0(replace(old, net=thinned.net), old.machine)
        kept = [(x.pieces, x.method) for x in made.launches] == [
            (x.pieces, x.method) for x in old.launches
        ]
        why = f"{thinned.words}, in step {thinned.step} and before"
        why += "; no other launches are faster" if kept else ""
        self.switch(made, step, why, now() - begun)

    def _planned_anew(self, drifted: Drifted, step: int) -> None:
        """Fit the machine to the measurements, plan on rank 0, and follow the new plan."""
        self._drain(step)
        begun, old = now(), self._engine.plan
        factors = probe_nodes(old.machine, self._comm, lambda: self._waits(step))
        machine, what = refit_machine(old, drifted.seconds, factors)
        self._waits(step, PLANNING)
        made = self._plan_on_rank_0(old, machine)
        why = (
            f"exchanges took {drifted.ratio:.3g} of the predicted time in step {drifted.step} and"
            f" before, outside {drifted.low:.3g} to {drifted.high:.3g}; {what}"
        )
        if not explains(old, machine, drifted.seconds):
            why += "; no rate explains the measurements, so drift no longer changes the plan"
            assert self._drift is not None
            self._drift.free()
            self._drift = None
        self.switch(made, step, why, now() - begun, drifted.ratio)

    def _plan_on_rank_0(self, old: Plan, machine: Machine) -> Plan:
        """Plan on rank 0 for the new measurements, and return that plan on every rank."""
        assert self._replan is not None
        falls = self._guard.fallbacks if self._guard is not None else []
        stay = frozenset(fall.tensor for fall in falls)
        data, error = None, ""
        if self._comm.rank == 0:
            try:
                data = plan_file.to_data(self._replan(old, machine, stay))
            except CommschedError as failure:
                error = str(failure)
        data, error = agree.broadcast_data((data, error), self._comm)
        if error:
            raise Agreed(f"planning anew: {error}")
        return plan_file.from_data(data, "the new plan")

    def _drain(self, step: int) -> None:
        self._engine.drain()
        self._waits(step)

    def _waits(self, step: int, more: float = 0.0) -> None:
        """Post a wait whose deadline counts from `more` seconds ahead."""
        what = "waits for all ranks to change their plan"
        self._engine.board.show("compute", WaitStatus(step, "switch", what, now() + more, True))

    def switch(
        self,
        plan: Plan,
        step: int,
        why: str,
        seconds: float | None = None,
        ratio: float | None = None,
    ) -> None:
        """Follow another plan after `step`, once all exchanges under way are over.

        The next gradients include what the old launches have not sent.
        """
        check_can_leave(self._engine.plan.launches, "another plan", "begin with another method")
        self._drain(step)
        agree.check_plan(plan, self._comm)
        kept = self._engine.follow(plan, step)
        self._source.follow(plan, kept)
        if self._measurement is not None:
            self._measurement.follow(plan)
        self.watch(step + 1)
        self._engine.board.idle("compute")
        self._switches.append(
            Switch(step=step + 1, plan=plan.hash, why=why, seconds=seconds, ratio=ratio)
        )

    def sentence(self, since: int) -> str:
        """Say why the plan has changed from a step on."""
        fallen = fallback_sentence(self.fallbacks, since)
        return fallen or f"step {since}: {self._switches[-1].why}"

    def close(self) -> None:
        """Finish all gathers under way; all ranks call it."""
        for watcher in (self._guard, self._density, self._drift):
            if watcher is not None:
                watcher.free()

    @property
    def fallbacks(self) -> tuple[Fallback, ...] | None:
        """Return the tensors that left the error budget; None if no plan so far had a budget."""
        return None if self._guard is None else tuple(self._guard.fallbacks)

    @property
    def switches(self) -> tuple[Switch, ...] | None:
        """Return the changes of plan; None if there are none and drift is not watched."""
        return tuple(self._switches) if self._switches or self._drift is not None else None
