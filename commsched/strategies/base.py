"""What every strategy offers: its operations per step, and its memory per rank."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from commsched.plan.model import Param, Plan
from commsched.program import Program
from commsched.strategies.numbers import Range, settled


class Memory(NamedTuple):
    """Bytes on one rank, by use."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    buckets: float

    @property
    def total(self) -> float:
        return sum(self)


class Strategy(ABC):
    """How ranks share the training; parameters are validated by `settings`."""

    name: str
    defaults: Mapping[str, Param]
    allowed: Mapping[str, tuple[Param, ...] | Range]

    @abstractmethod
    def lower(self, plan: Plan, step: int, decisions: Mapping[str, float]) -> Program:
        """The operations of one step; `decisions` are the agreed numbers of earlier steps."""

    @abstractmethod
    def memory(self, plan: Plan) -> Memory:
        """Bytes on the rank that needs most."""

    def settings(self, plan: Plan) -> dict[str, Param]:
        """The plan's parameters over the defaults; unknown or impossible ones are refused."""
        return settled(self.name, plan.params, self.defaults, self.allowed)
