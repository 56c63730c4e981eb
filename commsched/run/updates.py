"""The end of a step whose ranks exchange parameters: the caller has updated them."""

from collections.abc import Sequence
from math import nan

from commsched.errors import CommschedError
from commsched.program.model import CODINGS, Kind, Op
from commsched.run.engine.caller_lane import CallerLane
from commsched.run.engine.engine import Engine
from commsched.run.job.clock import now


class Updates:
    """What waits for this rank's updates, and what the caller waits for after them."""

    def __init__(self) -> None:
        self.open = False  # a step has begun whose update is not done
        self._ops: Sequence[Op] = ()
        self._loss = nan

    def vote(self, step: int) -> float:
        """Return the loss of this rank's latest batch."""
        return self._loss

    def begin(self, ops: Sequence[Op]) -> None:
        """Begin a step of these operations."""
        self._ops, self.open, self._loss = ops, True, nan

    def check_over(self, step: int) -> None:
        """Refuse to go on before a step's update."""
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
        """Post an update that the caller never did, so that exchanges under way can end."""
        if self.open:
            self._post(engine, step, nan)

    def _post(self, engine: Engine, step: int, loss: float) -> None:
        engine.board.check()
        self._loss, self.open = loss, False
        for op in self._ops:
            if op.kind is Kind.APPLY:
                engine.board.mark(step, op.name, now())
