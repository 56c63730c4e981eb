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
    mail: Mail | None  # messages to single ranks; None: no messages
    report: Callable[[int, Score, bool], None]  # takes a step's score and overflow on this rank
    overflowed: Callable[[int], bool]  # whether a step overflowed on any rank

    @property
    def roles(self) -> Roles:
        """Return the objects that the engine calls."""

    def whole(self, others: Neighbours) -> Mapping[str, Array]:
        """Return the parameters that this rank computes with, float32; all ranks call it."""

    def perform(self, step: int, op: Op) -> None:
        """Perform one operation of the compute stream, whose inputs are complete."""

    def settle(self) -> None:
        """Apply all results; no exchange may be under way."""

    def evaluate(self, others: Neighbours) -> Iterator[Score]:
        """Score this rank's part of the held-out samples, part by part; all ranks call it.

        In each part a rank takes values of the previous pipeline rank in this part, and of the last
        pipeline rank in the previous part.
        """

    def state(self) -> tuple[dict[str, Any], dict[str, float]]:
        """Return this rank's arrays, and the common numbers; no exchange may be under way."""

    def restore(self, tensors: object, scalars: Mapping[str, float], step: int) -> None:
        """Restore what `state` returned before `step`; reject anything else."""
