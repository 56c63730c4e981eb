"""The samples of a step: an order per epoch, from a counter-based generator."""

from functools import lru_cache

from commsched.arrays import Array
from commsched.errors import CommschedError
from commsched.kernels import random


def epoch_of(step: int, batch: int, samples: int) -> tuple[int, int]:
    """Return the epoch of a step, and the step's index in it; epochs have whole batches only."""
    return divmod(step, samples // batch)


def batch_of(seed: int, step: int, batch: int, samples: int) -> Array:
    """Return the indices of a step's samples over all ranks: (batch,).

    The indices depend only on the seed, the epoch and the step's index in the epoch: they are equal
    after a resume, and for every number of ranks.
    """
    epoch, place = epoch_of(step, batch, samples)
    return _order(seed, epoch, samples)[place * batch : (place + 1) * batch]


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, samples: int) -> Array:
    return random.generator(seed, epoch, 0, "order").permutation(samples)


def part_of(count: int, rank: int, ranks: int) -> slice:
    """Return a rank's part of `count` samples: near-equal runs, in the order of the ranks."""
    return slice(count * rank // ranks, count * (rank + 1) // ranks)


def check_batch(batch: int, samples: int, parts: int, what: str = "ranks") -> None:
    """Reject a batch that cannot be shared evenly, or that is larger than an epoch."""
    if not 1 <= batch <= samples:
        raise CommschedError(f"--batch must be from 1 to the {samples} samples, got {batch}")
    if batch % parts:
        near = max(parts, round(batch / parts) * parts)
        raise CommschedError(
            f"--batch {batch} is shared by {parts} {what}, so it must be a multiple of {parts};"
            f" nearest: {near}"
        )
