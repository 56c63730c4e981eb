"""Early-bird tickets: a dense warm-up until the set of the largest parameters is stable."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from commsched.arrays import Array
from commsched.kernels.pruned import largest
from commsched.train.forward_backward import gradients
from commsched.train.layers.layer import TrainableNet
from commsched.train.optimizers import find_optimizer
from commsched.train.sample_order import batch_of
from commsched.train.samples import Samples

ROUND = 10  # steps between two masks
QUEUE, NEAR = 5, 0.1  # masks that must agree, and the share in which they may differ

Masks = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Beat:
    """The function to call after each step; all compare equal, so that ranks share a warm-up."""

    call: Callable[[], None] = field(compare=False)


def warm_up(
    net: TrainableNet,
    train: Samples,
    kept: Mapping[str, int],
    batch: int,
    rate: float,
    seed: int,
    most: int,
    beat: Callable[[], None] = lambda: None,
) -> dict[str, Array]:
    """Return the parameters, float32, after a dense warm-up with Adam on the first batches.

    Every ROUND steps each tensor's `kept` largest magnitudes are its mask. The warm-up ends
    once each of the QUEUE previous masks differs from the last mask in at most NEAR of its
    elements, or after `most` steps. `beat` is called after each step.
    Source: You et al., "Drawing early-bird tickets", ICLR 2020, which compares whole channels after
    every epoch and divides by all channels, kept or not.
    """
    found = warmed(net, train, tuple(kept.items()), batch, rate, seed, most, Beat(beat))
    return {name: values.copy() for name, values in found.items()}


@lru_cache(maxsize=1)  # ranks in one process start from the same warm-up
def warmed(
    net: TrainableNet,
    train: Samples,
    kept: tuple[tuple[str, int], ...],
    batch: int,
    rate: float,
    seed: int,
    most: int,
    beat: Beat,
) -> dict[str, Array]:
    """Return the result of `warm_up`, cached: the same arrays in every call."""
    values, adam = net.start(seed), find_optimizer("adam")
    state = {n: {word: np.zeros_like(v) for word in adam.words} for n, v in values.items()}
    before: deque[Masks] = deque(maxlen=QUEUE)
    for step in range(most):
        some = train.of(batch_of(seed, step, batch, len(train)))
        found = [part for _, part in gradients(net, values, some.inputs, some.targets)[1]]
        for part in found:
            for name, gradient in part.items():
                adam.update(values[name], gradient, state[name], step, rate)
        beat.call()
        if step % ROUND == ROUND - 1:
            masks = {n: largest(values[n].reshape(-1), count) for n, count in kept}
            if len(before) == QUEUE and all(distance(old, masks) <= NEAR for old in before):
                break
            before.append(masks)
    return values


def distance(one: Masks, other: Masks) -> float:
    """Return the share of a mask's elements that are not in another mask of equal sizes."""
    size = sum(len(index) for index in one.values())
    shared = sum(len(np.intersect1d(one[n], other[n], assume_unique=True)) for n in one)
    return 1.0 - shared / size if size else 0.0
