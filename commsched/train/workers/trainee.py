"""The interface between a training and its worker, in addition to the engine's interface."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from commsched.arrays import Array
from commsched.program.model import Op
from commsched.run.engine.messages import Mail
from commsched.run.engine.worker import GradientSource, Roles
from commsched.train.forward_backward import Score
from commsched.train.layers.layer import TrainableNet
from commsched.train.neighbours import Neighbours
from commsched.train.schedules import Rates


class Trainee(GradientSource, Protocol):
    """A net, or a rank's part of a net, that learns."""

    net: TrainableNet
    alike: bool  # whether ranks that share tensors end with equal parameters
    ahead: int  # steps whose scores may be under way
    skipped: int  # steps that were left out
    rates: Rates  # learning rates
    mail: Mail | None  # its messages to single ranks; None: none
    report: Callable[[int, Score, bool], None]  # takes a step's score and overflow here
    overflowed: Callable[[int], bool]  # whether a step overflowed on any rank

    @property
    def roles(self) -> Roles:
        """Return the objects that its engine calls."""

    def whole(self, others: Neighbours) -> Mapping[str, Array]:
        """Return the parameters that this rank computes with, float32; all ranks call it."""

    def perform(self, step: int, op: Op) -> None:
        """Do one operation of the compute stream; its inputs are there."""

    def settle(self) -> None:
        """Apply all results; no exchange may be under way."""

    def evaluate(self, others: Neighbours) -> Iterator[Score]:
        """Score this rank's part of the held-out samples, part by part; all ranks call it.

        A rank takes what the rank before it in a pipeline gives in the same part, and what the
        last one gives in the part before.
        """

    def state(self) -> tuple[dict[str, Any], dict[str, float]]:
        """Return this rank's arrays, and the common numbers; no exchange may be under way."""

    def restore(self, tensors: object, scalars: Mapping[str, float], step: int) -> None:
        """Restore what `state` returned before `step`; refuse anything else."""
