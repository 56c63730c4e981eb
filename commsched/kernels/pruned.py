"""Mixed precision with Adam on a pruned tensor: only the values under a static mask are kept.

Source: Singh & Bhatele, "Exploiting sparsity in pruned neural networks to optimize large model
training" (SAMO), IPDPS 2023; Kingma & Ba, "Adam", ICLR 2015; Micikevicius et al., "Mixed precision
training", ICLR 2018.
"""

from dataclasses import dataclass

import numpy as np

from commsched.arrays import Array
from commsched.errors import CommschedError
from commsched.kernels.device import device
from commsched.kernels.half import half_sum
from commsched.kernels.modules import module_of

MOST = 2**31 - 1  # largest int32 index plus one


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamConstants:
    """Adam's learning rate, decay of both moments, and the term that avoids 0 / 0."""

    rate: float = 1e-3
    first: float = 0.9
    second: float = 0.999
    small: float = 1e-8


@dataclass(slots=True, kw_only=True)
class Pruned:
    """A tensor of N elements that keeps n of them: 2 N + 18 n bytes, or 16 N if n = N.

    While its sum is exchanged it needs 6 n more: `EXCHANGED` bytes for each value.
    """

    index: Array | slice  # (n,) int32, ascending: where the kept values lie; a slice: everywhere
    half: Array  # (N,) float16, parameters of forward and backward, zeros in place
    packed: Array  # (n,) float16, the sum of the microbatches' gradients
    values: Array  # (n,) float32, master parameters, which are updated
    mean: Array  # (n,) float32, Adam's first moment
    square: Array  # (n,) float32, its second


def prune(values: Array, index: Array | None) -> Pruned:
    """Keep the elements `index`, (n,) ascending, of parameters (N,) float32; None: all."""
    module, numel = module_of(values), len(values)
    own = slice(None) if index is None else _checked(index, numel)
    kept = values[own].copy()
    state = Pruned(
        index=own,
        half=module.zeros(numel, np.float16),
        packed=module.zeros(len(kept), np.float16),
        values=kept,
        mean=module.zeros(len(kept), np.float32),
        square=module.zeros(len(kept), np.float32),
    )
    compute_with(state, slice(None))
    return state


def _checked(index: Array, numel: int) -> Array:
    """Return the mask as int32."""
    if numel > MOST:
        raise CommschedError(f"a pruned tensor has at most {MOST} elements, got {numel}")
    if len(index) and (int(index[0]) < 0 or int(index[-1]) >= numel):
        raise CommschedError(f"the mask must lie in 0 to {numel - 1}")
    if not bool((index[1:] > index[:-1]).all()):
        raise CommschedError("the mask must ascend, each element once")
    return index.astype(np.int32)


def kept_of(numel: int, share: float) -> int:
    """Return how many elements of a tensor a share keeps: at least one."""
    return max(1, round(numel * share))


def largest(values: Array, kept: int) -> Array:
    """Return the mask that keeps the largest magnitudes, the first of equal ones: (kept,) int32."""
    module = module_of(values)
    order = module.argsort(-module.abs(values), kind="stable")
    return module.sort(order[:kept]).astype(np.int32)


def random_mask(numel: int, kept: int, generator: np.random.Generator) -> Array:
    """Return a mask that keeps random elements, equal for equal generators: (kept,) int32."""
    return np.sort(generator.choice(numel, kept, replace=False)).astype(np.int32)


def compute_with(state: Pruned, piece: slice) -> None:
    """Round a piece of the master parameters to float16."""
    gpu = device(state.values)
    if isinstance(state.index, slice):
        state.half[piece] = state.values[piece].astype(np.float16)
    elif gpu is None:
        state.half[state.index[piece]] = state.values[piece].astype(np.float16)
    else:  # pruned values stay zero
        values, index = state.values[piece], state.index[piece]
        given = values, index, np.int64(len(index)), state.half.view(np.uint16)
        gpu.start("pruned", "scatter", gpu.strides(len(index)), *given)


def whole(state: Pruned) -> Array:
    """Return the master parameters, zeros in place: (N,) float32."""
    out = module_of(state.values).zeros(len(state.half), np.float32)
    out[state.index] = state.values
    return out


def pack(state: Pruned, gradient: Array) -> None:
    """Add a microbatch's gradient, (N,) float16 with the loss scale."""
    gpu = device(state.packed)
    if gpu is None or isinstance(state.index, slice):
        state.packed[:] = half_sum(state.packed, gradient[state.index])
    else:
        numel = len(state.index)
        words = gradient.view(np.uint16), state.index, np.int64(numel), state.packed.view(np.uint16)
        gpu.start("pruned", "gather_add", gpu.strides(numel), *words)


def update(
    state: Pruned, piece: slice, gradient: Array, divisor: float, steps: int, rates: AdamConstants
) -> None:
    """Apply a sum, (k,) float32, to a piece of the kept values; the sum is overwritten.

    g = sum / divisor;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
    x = x - rate (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + small)
    divisor: loss scale, times ranks and microbatches for a mean; t = `steps`, from 1 on.
    """
    values, mean, square = state.values[piece], state.mean[piece], state.square[piece]
    adam(gradient, values, mean, square, steps, divisor, rates)
    compute_with(state, piece)


def adam(
    gradient: Array,
    values: Array,
    mean: Array,
    square: Array,
    steps: int,
    divisor: float,
    rates: AdamConstants,
) -> None:
    """Do one step of Adam in place on (n,) float32 arrays, element by element."""
    gpu, one = device(values), np.float32(1)
    first, second = np.float32(rates.first), np.float32(rates.second)
    if gpu is not None:
        arrays, numel = (gradient, values, mean, square), np.int64(len(values))
        of_mean = first, one - first, np.float32(1 - rates.first**steps)
        of_square = second, one - second, np.float32(1 - rates.second**steps)
        last = np.float32(rates.rate), np.float32(rates.small)
        given = *arrays, numel, np.float32(divisor), *of_mean, *of_square, *last
        gpu.start("pruned", "adam", gpu.strides(len(values)), *given)
        return
    gradient /= np.float32(divisor)
    mean *= first
    mean += (one - first) * gradient
    square *= second
    square += (one - second) * (gradient * gradient)
    size = np.sqrt(square / np.float32(1 - rates.second**steps)) + np.float32(rates.small)
    values -= np.float32(rates.rate) * (mean / np.float32(1 - rates.first**steps)) / size
