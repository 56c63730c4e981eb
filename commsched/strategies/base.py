"""What every strategy offers: its operations per step, and its memory per rank."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commsched.errors import CommschedError
from commsched.plan.model import Param, Plan
from commsched.program import Op, Program

Floats = npt.NDArray[np.float32]
State = dict[str, Floats]
# Bytes of optimiser state per parameter, and memory traffic of one update in B per parameter:
# read gradient, read and write the parameter and each state word.
OPTIMIZERS = {"sgd": (0, 12), "momentum": (4, 20), "adam": (8, 28)}


class Between(NamedTuple):
    """What a parameter that is a number may be; a whole one where its default is."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


Options = tuple[Param, ...] | Between


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
    allowed: Mapping[str, Options]
    decides = False  # whether all ranks agree on a number, the mean of their losses

    @abstractmethod
    def lower(self, plan: Plan, step: int, decisions: Mapping[str, float]) -> Program:
        """The operations of one step; `decisions` are the agreed numbers of earlier steps."""

    @abstractmethod
    def memory(self, plan: Plan) -> Memory:
        """Bytes on the rank that needs most."""

    def names(self, plan: Plan) -> tuple[str, ...]:
        """Every operation that a step may have on any rank, in program order."""
        ops = (op for role in self.lower(plan, 1, {}).roles for op in role.ops)
        return tuple(dict.fromkeys(op.name for op in ops))

    def merge(self, plan: Plan, op: Op, local: Floats, total: Floats, state: State) -> None:
        """Change a rank's parameters to what they are after a merge.

        local: (numel,) the parameters as they are now, changed in place; total: (numel,) the sum
        over the team of what was sent. What `state` holds lives from merge to merge of a launch.
        """
        raise AssertionError(f"strategy {self.name!r} merges nothing")

    def settings(self, plan: Plan) -> dict[str, Param]:
        """The plan's parameters over the defaults; unknown or impossible ones are refused."""
        given: dict[str, Param] = {}
        for key, value in plan.params.items():
            if key not in self.defaults:
                known = ", ".join(self.defaults)
                raise CommschedError(
                    f"strategy {self.name!r} has no parameter {key!r}; known: {known}"
                )
            allowed = self.allowed[key]
            found = _meant(value, self.defaults[key])
            if isinstance(allowed, Between):
                fits = type(found) is type(self.defaults[key]) and (
                    allowed.low <= float(found) <= allowed.high
                )
            else:
                fits = found in allowed
            if not fits:
                between = isinstance(allowed, Between)
                names = str(allowed) if between else ", ".join(map(str, allowed))
                raise CommschedError(
                    f"strategy {self.name!r}: {key} cannot be {value!r}; allowed: {names}"
                )
            given[key] = found
        return {**self.defaults, **given}


def _meant(value: Param, default: Param) -> Param:
    """A parameter that a command line or a file gives, as its default's kind; else as it is."""
    if isinstance(default, bool):
        words: dict[Param, bool] = {"true": True, "false": False}
        return words.get(value, value)
    try:
        if isinstance(default, float) and not isinstance(value, bool):
            return float(value)
        if isinstance(default, int) and isinstance(value, str):
            return int(value)
    except ValueError:
        return value
    if isinstance(default, int) and isinstance(value, float) and value.is_integer():
        return int(value)
    return value
