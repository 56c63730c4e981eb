"""What a training asks of the worker that learns, beside what its engine asks."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from commsched.arrays import Array
from commsched.program.model import Op
from commsched.run.engine.messages import Mail
from commsched.run.engine.worker import GradientSource, Roles
from commsched.train.forward_backward import Score
from commsched.train.layers.layer import TrainableNet
from commsched.train.neighbours import Neighbours


class Trainee(GradientSource, Protocol):
    """A net, or a rank's part of one, that learns."""

    net: TrainableNet
    alike: bool  # whether all ranks end with the same parameters, where they have the same tensors
    ahead: int  # steps whose scores may be under way
    skipped: int  # steps that were left out
    mail: Mail | None  # what it sends to single ranks; None: nothing
    report: Callable[[int, Score, bool], None]  # takes a step's score and overflow here
    overflowed: Callable[[int], bool]  # whether any rank's step did

    @property
    def roles(self) -> Roles:
        """What it does for its engine."""

    @property
    def values(self) -> Mapping[str, Array]:
        """The parameters that this rank has, by tensor, float32."""

    def perform(self, step: int, op: Op) -> None:
        """Do one operation of the compute stream; its inputs are there."""

    def settle(self) -> None:
        """Apply all results that are there: nothing is under way."""

    def evaluate(self, others: Neighbours) -> Score:
        """Score this rank's part of the held-out samples; all ranks call it."""

    def state(self) -> tuple[dict[str, Any], dict[str, float]]:
        """This rank's arrays, and numbers that are the same on all ranks; nothing is under way."""

    def restore(self, tensors: object, scalars: Mapping[str, float], step: int) -> None:
        """Put back what `state` gave before `step`; anything else is refused."""
