"""Mixed precision with Adam on a pruned tensor: only the values under a static mask are kept.

Source: Singh & Bhatele, "Exploiting sparsity in pruned neural networks to optimize large model
training" (SAMO), IPDPS 2023; Kingma & Ba, "Adam", ICLR 2015; Micikevicius et al., "Mixed precision
training", ICLR 2018.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np

from commsched.errors import CommschedError
from commsched.kernels.device import device
from commsched.kernels.modules import Array, module_of

MOST = 2**31 - 1  # elements that an int32 can number


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Adam's constants."""

    rate: float = 1e-3
    first: float = 0.9
    second: float = 0.999
    small: float = 1e-8


@dataclass(slots=True, kw_only=True)
class Pruned:
    """A tensor of N elements of which n are kept: 2 N + 24 n bytes."""

    index: Array  # (n,) int32, ascending: where the kept values lie
    half: Array  # (N,) float16, the parameters that compute, zeros in place
    packed: Array  # (n,) float16, the sum of the microbatches' gradients
    wire: Array  # (n,) float16, what travels and what came
    gradient: Array  # (n,) float32, the mean without the loss scale
    values: Array  # (n,) float32, the parameters that learn
    mean: Array  # (n,) float32, Adam's first moment
    square: Array  # (n,) float32, its second
    steps: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = (getattr(self, field.name) for field in fields(self))
        return sum(array.nbytes for array in arrays if not isinstance(array, int))


def prune(values: Array, index: Array) -> Pruned:
    """Keep the elements `index`, (n,) ascending, of parameters (N,) float32."""
    module, numel, kept = module_of(values), len(values), len(index)
    if numel > MOST:
        raise CommschedError(f"a pruned tensor has at most {MOST} elements, got {numel}")
    if kept and (int(index[0]) < 0 or int(index[-1]) >= numel):
        raise CommschedError(f"the mask must lie in 0 to {numel - 1}")
    if not bool((index[1:] > index[:-1]).all()):
        raise CommschedError("the mask must ascend, each element once")
    index = index.astype(np.int32)
    state = Pruned(
        index=index,
        half=module.zeros(numel, np.float16),
        packed=module.zeros(kept, np.float16),
        wire=module.zeros(kept, np.float16),
        gradient=module.zeros(kept, np.float32),
        values=values[index],
        mean=module.zeros(kept, np.float32),
        square=module.zeros(kept, np.float32),
    )
    state.half[index] = state.values.astype(np.float16)
    return state


def largest(values: Array, pruned: float) -> Array:
    """The mask that keeps the largest magnitudes, the first of equal ones: (n,) int32.

    n = N - floor(pruned N), at least one.
    """
    module = module_of(values)
    kept = max(1, len(values) - int(pruned * len(values)))
    order = module.argsort(-module.abs(values), kind="stable")
    return module.sort(order[:kept]).astype(np.int32)


def random_mask(numel: int, pruned: float, generator: np.random.Generator) -> Array:
    """A mask that keeps random elements, equal for equal generators: (n,) int32."""
    kept = max(1, numel - int(pruned * numel))
    return np.sort(generator.choice(numel, kept, replace=False)).astype(np.int32)


def pack(state: Pruned, gradient: Array) -> None:
    """Add a microbatch's gradient, (N,) float16 with the loss scale, the moment it exists."""
    gpu = device(state.packed)
    if gpu is None:
        state.packed += gradient[state.index]
    else:
        gpu.pruned.gather_add(gradient, state.index, state.packed)


def send(state: Pruned) -> Array:
    """What travels, (n,) float16, and begin the next step's sum anew."""
    state.wire[:] = state.packed
    state.packed.fill(0)
    return state.wire


def is_finite(state: Pruned) -> bool:
    """Whether the sum that came, in `wire`, has neither NaN nor infinity."""
    return bool(module_of(state.wire).isfinite(state.wire).all())


def update(state: Pruned, divisor: float, rates: Rates) -> None:
    """Apply the sum in `wire`; divisor: loss scale, times ranks and microbatches for a mean.

    g = wire / divisor;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
    x = x - rate (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + small)
    """
    state.steps += 1
    state.gradient[:] = state.wire
    adam(state.gradient, state.values, state.mean, state.square, state.steps, divisor, rates)
    gpu = device(state.values)
    if gpu is None:
        state.half.fill(0)
        state.half[state.index] = state.values.astype(np.float16)
    else:  # what is pruned stays zero
        gpu.pruned.scatter(state.values, state.index, state.half)


def adam(
    gradient: Array,
    values: Array,
    mean: Array,
    square: Array,
    steps: int,
    divisor: float,
    rates: Rates,
) -> None:
    """One step of Adam in place on (n,) float32 arrays; element by element, whatever n is."""
    gpu, module, one = device(values), module_of(values), np.float32(1)
    if gpu is not None:
        gpu.pruned.adam((gradient, values, mean, square), divisor, rates, steps)
        return
    first, second = np.float32(rates.first), np.float32(rates.second)
    gradient /= np.float32(divisor)
    mean *= first
    mean += (one - first) * gradient
    square *= second
    square += (one - second) * (gradient * gradient)
    size = module.sqrt(square / np.float32(1 - rates.second**steps)) + np.float32(rates.small)
    values -= np.float32(rates.rate) * (mean / np.float32(1 - rates.first**steps)) / size


class LossScale:
    """The factor on the loss that keeps halves from vanishing: equal on all ranks.

    Each step all ranks vote whether their sums are finite. Where one says no, nobody updates and
    the scale is halved; after `patience` good steps it is doubled.
    """

    def __init__(self, scale: float = 2.0**15, patience: int = 2000) -> None:
        self.scale, self.patience = scale, patience
        self.good = 0  # steps since the scale last changed

    def agree(self, votes: Iterable[bool]) -> bool:
        """Take the votes of all ranks, change the scale alike, and say whether to update."""
        fine = all(list(votes))
        self.good = self.good + 1 if fine else 0
        if not fine:
            self.scale = max(1.0, self.scale / 2)
        elif self.good == self.patience:
            self.scale, self.good = self.scale * 2, 0
        return fine
