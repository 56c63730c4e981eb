"""The interface of strategies: their operations per step, and their memory per rank."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from commsched.errors import CommschedError
from commsched.plan.model import Param, Plan
from commsched.program.model import Op, Program, by_name
from commsched.program.parameters import Parameter, settled

Floats = npt.NDArray[np.float32]
State = dict[str, Floats]


class Memory(NamedTuple):
    """Bytes on one rank, by use."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    buckets: float
    residuals: float = 0.0  # what launches keep from step to step in addition to their buckets
    packets: float = 0.0  # packets that wait to be sent, and packets that one exchange receives

    @property
    def total(self) -> float:
        return float(sum(self))


class Strategy(ABC):
    """The way in which ranks share the training; `settings` validates its parameters."""

    name: str
    parameters: Mapping[str, Parameter]
    changes = False  # whether launches may begin later than others
    sums_every_step = False  # whether all ranks hold all parameters and sum all gradients each step
    # whether each rank computes all layers and updates all parameters, which ranks exchange later
    averages = False
    # whether every launch sums gradients among all ranks, or gathers shards, within its step
    verifiable = False
    # whether a step's sums are those of one process with all batches, up to the order of additions
    exact = False
    # what all ranks agree on: the mean of losses, or the share of ranks that overflow
    decides: Literal["loss", "overflow", ""] = ""

    @property
    def defaults(self) -> dict[str, Param]:
        """Return the default of every parameter."""
        return settled(self.name, {}, self.parameters)

    @abstractmethod
    def lower(self, plan: Plan, step: int, decisions: Mapping[str, float]) -> Program:
        """Return the operations of a step; `decisions` are the agreed numbers of earlier steps."""

    @abstractmethod
    def memory(self, plan: Plan) -> Memory:
        """Return the bytes on the rank that needs most."""

    def batches(self, plan: Plan) -> int:
        """Count the batches of the net that all ranks together compute in a step."""
        return plan.machine.size

    def work(self, plan: Plan) -> float:
        """Return a lower bound of the compute, s, of the rank that begins a step last.

        Without jitter and launches; ranks that share experts may compute none of them.
        """
        layers = (layer for layer in plan.net.layers if layer.experts is None)
        return sum(sum(plan.net.seconds(layer, plan.machine.device)) for layer in layers)

    def periods(self, plan: Plan) -> tuple[tuple[float, Plan], ...]:
        """Return the periods of a training: the share of steps, and a plan that begins with it."""
        return ((1.0, plan),)

    def operations(self, plan: Plan) -> dict[str, Op]:
        """List all operations that a step may have on any rank, by name, in program order."""
        return by_name(op for role in self.lower(plan, 1, {}).roles for op in role.ops)

    def merge(self, plan: Plan, op: Op, local: Floats, total: Floats, state: State) -> None:
        """Merge a launch's sum into a rank's parameters.

        local: (numel,) the parameters, changed in place; total: (numel,) the team's sum of sent
        parameters; state: kept from merge to merge of the launch.
        """
        raise AssertionError(f"strategy {self.name!r} merges nothing")

    def settings(self, plan: Plan) -> dict[str, Param]:
        """Return the plan's parameters, else the defaults; refuse unknown or impossible ones."""
        if not self.changes:
            for launch in plan.launches:
                if launch.since:
                    raise CommschedError(
                        f"launch {launch.name!r} begins at step {launch.since}; launches of"
                        f" strategy {self.name!r} begin at step 0"
                    )
        return settled(self.name, plan.params, self.parameters)
