"""Who computes: emulated layers that take their time like an accelerator, with drawn gradients."""

from typing import Protocol

import numpy as np

from commsched.codecs import Array
from commsched.ir import Tensor
from commsched.kernels import random
from commsched.plan import Launch, Plan


class Worker(Protocol):
    """What a run asks for compute and gradients."""

    def seconds(self, step: int, nominal: float) -> float:
        """How long a compute operation takes that is planned to take `nominal` seconds."""

    def gradient(self, step: int, launch: int, out: Array) -> None:
        """Write a launch's gradient into `out` (numel,) float32."""

    def result(self, step: int, launch: int, values: Array) -> None:
        """Take a launch's sum, or mean, (numel,) float32; valid until its next gradient."""


def draw(plan: Plan, rank: int, tensor: Tensor) -> Array:
    """A tensor's gradient on one rank: normal values on a support with the planned law.

    (numel,) float32, the same in every process and run of the same seed.
    """
    values = random.generator(plan.seed, 0, rank, f"{tensor.name}/values")
    if tensor.sparsity.law == "dense":
        return values.standard_normal(tensor.numel, np.float32)
    # A static mask is the same on every rank.
    owner = 0 if tensor.sparsity.law == "mask" else rank
    support = tensor.sparsity.support(
        tensor.numel, random.generator(plan.seed, 0, owner, f"{tensor.name}/support")
    )
    out = np.zeros(tensor.numel, np.float32)
    out[support] = values.standard_normal(len(support), np.float32)
    return out


def draw_launch(plan: Plan, rank: int, launch: Launch) -> Array:
    """A launch's gradient on one rank: (numel,) float32."""
    tensors = plan.graph.tensors
    whole = {p.tensor: draw(plan, rank, tensors[p.tensor]) for p in launch.pieces}
    return np.concatenate([whole[p.tensor][p.start : p.stop] for p in launch.pieces])


class Emulated:
    """Compute that sleeps, with the plan's jitter; gradients are drawn once and used every step."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self._plan = plan
        self._ranks = np.array([rank])
        self._jitter = (-1, 1.0)  # the factor of a step
        self._gradients = [draw_launch(plan, rank, launch) for launch in plan.launches]

    def seconds(self, step: int, nominal: float) -> float:
        if self._jitter[0] != step:
            plan = self._plan
            drawn = random.jitter(plan.machine.jitter, plan.seed, step, self._ranks)
            self._jitter = step, float(drawn[0])
        return nominal * self._jitter[1]

    def gradient(self, step: int, launch: int, out: Array) -> None:
        out[:] = self._gradients[launch]

    def result(self, step: int, launch: int, values: Array) -> None:
        """Nobody needs the sum of drawn gradients."""
