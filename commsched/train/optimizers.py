"""Optimisers: element by element, so that any piece of a tensor may be updated by itself."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from commsched.arrays import Array
from commsched.errors import CommschedError

BEFORE_MEAN, BEFORE_SQUARE, LEAST = 0.9, 0.999, 1e-8  # Kingma & Ba, ICLR 2015
GROWTH = 2000  # good steps before the loss scale doubles; source: Micikevicius et al., ICLR 2018
MOST = 2.0**24  # of a loss scale: float32 still tells whole numbers apart


class Optimizer(ABC):
    """How a gradient changes its parameter; `words` name the arrays that it keeps of each."""

    words: tuple[str, ...] = ()

    @abstractmethod
    def update(
        self, values: Array, gradient: Array, kept: Mapping[str, Array], count: int, rate: float
    ) -> None:
        """Change `values` (n,) float32 in place, and what is kept; `count` updates came before."""


class Sgd(Optimizer):
    """x -= rate g."""

    def update(
        self, values: Array, gradient: Array, kept: Mapping[str, Array], count: int, rate: float
    ) -> None:
        values -= np.float32(rate) * gradient


class Momentum(Optimizer):
    """v = 0.9 v + g; x -= rate v."""

    words = ("velocity",)

    def __init__(self, share: float = 0.9) -> None:
        self._share = np.float32(share)

    def update(
        self, values: Array, gradient: Array, kept: Mapping[str, Array], count: int, rate: float
    ) -> None:
        velocity = kept["velocity"]
        velocity *= self._share
        velocity += gradient
        values -= np.float32(rate) * velocity


class Adam(Optimizer):
    """Steps by the mean gradient over the root of the mean square, both without their bias.

    Source: Kingma & Ba, "Adam", ICLR 2015.
    """

    words = ("mean", "square")

    def update(
        self, values: Array, gradient: Array, kept: Mapping[str, Array], count: int, rate: float
    ) -> None:
        mean, square = kept["mean"], kept["square"]
        mean *= np.float32(BEFORE_MEAN)
        mean += np.float32(1 - BEFORE_MEAN) * gradient
        square *= np.float32(BEFORE_SQUARE)
        square += np.float32(1 - BEFORE_SQUARE) * (gradient * gradient)
        step = rate / (1 - BEFORE_MEAN ** (count + 1))
        root = np.sqrt(square)
        root *= np.float32((1 - BEFORE_SQUARE ** (count + 1)) ** -0.5)
        root += np.float32(LEAST)
        values -= np.float32(step) * mean / root


OPTIMIZERS: dict[str, Optimizer] = {"sgd": Sgd(), "momentum": Momentum(), "adam": Adam()}
RATES = {"sgd": 0.1, "momentum": 0.02, "adam": 2e-3}  # that suit the nets here


def find_optimizer(name: str) -> Optimizer:
    """Return the optimiser called `name`."""
    if name not in OPTIMIZERS:
        raise CommschedError(f"no optimizer named {name!r}; known: {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name]


class LossScale:
    """What the loss is multiplied by, so that 16-bit gradients do not vanish: a power of 2.

    Halved when a gradient overflows, and that step is left out; doubled after 2000 good ones.
    Source: Micikevicius et al., "Mixed precision training", ICLR 2018.
    """

    def __init__(self, value: float = 2.0**16, good: int = 0) -> None:
        self.value, self.good = value, good

    def after(self, overflow: bool) -> None:
        """Note how a step went, on all ranks together."""
        if overflow:
            self.value, self.good = max(1.0, self.value / 2), 0
            return
        self.good += 1
        if self.good == GROWTH:
            self.value, self.good = min(MOST, self.value * 2), 0
