"""What every strategy offers: its operations per step, and its memory per rank."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from commsched.errors import CommschedError
from commsched.plan.model import Param, Plan
from commsched.program import Program


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
    allowed: Mapping[str, tuple[Param, ...]]

    @abstractmethod
    def lower(self, plan: Plan, step: int, decisions: Mapping[str, float]) -> Program:
        """The operations of one step; `decisions` are the agreed numbers of earlier steps."""

    @abstractmethod
    def memory(self, plan: Plan) -> Memory:
        """Bytes on the rank that needs most."""

    def settings(self, plan: Plan) -> dict[str, Param]:
        """The plan's parameters over the defaults; unknown or impossible ones are refused."""
        for key, value in plan.params.items():
            if key not in self.defaults:
                known = ", ".join(self.defaults)
                raise CommschedError(
                    f"strategy {self.name!r} has no parameter {key!r}; known: {known}"
                )
            if value not in self.allowed[key]:
                names = ", ".join(map(str, self.allowed[key]))
                raise CommschedError(
                    f"strategy {self.name!r}: {key} cannot be {value!r}; allowed: {names}"
                )
        return {**self.defaults, **plan.params}
