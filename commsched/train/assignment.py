"""The assignment of one rank in a training: its net, data, plan and settings."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from commsched.plan.model import Plan
from commsched.train.layers.layer import TrainableNet
from commsched.train.samples import Data
from commsched.train.schedules import CONSTANT, Rates, RateSchedule


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a training, in addition to its net, its plan and its data."""

    optimizer: str
    rate: float
    batch: int  # of all ranks together
    seed: int = 0
    fold: int = 0  # the held-out fold
    half: bool = False  # compute in 16 bits
    schedule: RateSchedule = CONSTANT
    steps: int = 0  # of the training, for schedules that depend on its end

    def rates(self) -> Rates:
        """Return the learning rates of a new training."""
        return Rates(self.rate, self.schedule, self.steps)


class Assignment(NamedTuple):
    """The arguments from which a worker is built."""

    net: TrainableNet
    data: Data
    plan: Plan
    settings: Settings
    rank: int
    module: Any = np  # array module for the computation
    beat: Callable[[], None] = lambda: None  # reports progress while the worker is made
