"""The caller's parameters, for plans that exchange these, and the end of a step's update."""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

import numpy as np

from commsched.arrays import Array
from commsched.errors import CommschedError
from commsched.plan.model import Plan
from commsched.program.model import CODINGS, Kind, Op
from commsched.run.engine.caller_lane import CallerLane
from commsched.run.engine.engine import Engine
from commsched.run.job.clock import now


def check_parameters(plan: Plan, values: Mapping[str, Any]) -> None:
    """Reject parameters that a plan's launches cannot exchange: all elements, float32, contiguous.

    Objects other than arrays only need slices.
    """
    for name in {p.tensor: 0 for x in plan.launches if x.payload == "parameter" for p in x.pieces}:
        if name not in values:
            raise CommschedError(f"parameters= has no tensor {name!r} of net {plan.net.name!r}")
        numel, given = plan.net.tensors[name].numel, values[name]
        shape, dtype = getattr(given, "shape", (numel,)), getattr(given, "dtype", np.float32)
        if tuple(shape) != (numel,) or dtype != np.float32:
            raise CommschedError(
                f"parameters= of tensor {name!r} must be float32 of shape [{numel}], got {dtype} of"
                f" shape {list(shape)}"
            )


class Held:
    """The caller's parameters by tensor, in objects whose slices can be read and assigned."""

    def __init__(self, plan: Plan, values: Mapping[str, Any]) -> None:
        self._plan, self._values = plan, values

    def parameters(self, step: int, launch: int, out: Array) -> None:
        for name, there, here in self._plan.launches[launch].places:
            out[here] = self._values[name][there]

    def replace(self, step: int, launch: int, values: Array) -> None:
        for name, there, here in self._plan.launches[launch].places:
            self._values[name][there] = values[here]


class Updates:
    """The updates of this rank, for which merges wait, and merges for which the caller waits."""

    def __init__(self) -> None:
        self.open = False  # True: the update of the current step is not done
        self._ops: Sequence[Op] = ()
        self._loss = nan

    def vote(self, step: int) -> float:
        """Return the loss of this rank's latest batch."""
        return self._loss

    def begin(self, ops: Sequence[Op]) -> None:
        """Begin a step of these operations."""
        self._ops, self.open, self._loss = ops, True, nan

    def check_over(self, step: int) -> None:
        """Raise an error if a step's update is missing."""
        if self.open:
            raise CommschedError(f"step {step} has no updated() at its end")

    def done(self, engine: Engine, lane: CallerLane, step: int, loss: float | None) -> None:
        """Post the update; wait until no exchange of this step reads or writes parameters."""
        decides = any(op.kind is Kind.DECIDE and op.launch < 0 for op in self._ops)
        if loss is None and decides:
            raise CommschedError(
                f"step {step}: strategy {engine.plan.strategy!r} decides by the mean loss of all"
                " ranks how often they exchange; give the loss of this step's batch"
            )
        self._post(engine, step, nan if loss is None else loss)
        launches = engine.plan.launches
        keys = [
            op.name
            for op in self._ops
            if (op.kind is Kind.DECIDE and op.launch < 0)
            or (op.kind in CODINGS and launches[op.launch].payload == "parameter")
        ]
        missing = [name for name in keys if not engine.board.is_done(step, name)]
        if missing:
            lane.block(step, "update", missing)
        engine.recorder.flush()

    def leave(self, engine: Engine, step: int) -> None:
        """Post an update that the caller has not made, so that exchanges under way can end."""
        if self.open:
            self._post(engine, step, nan)

    def _post(self, engine: Engine, step: int, loss: float) -> None:
        engine.board.check()
        self._loss, self.open = loss, False
        for op in self._ops:
            if op.kind is Kind.APPLY:
                engine.board.mark(step, op.name, now())
