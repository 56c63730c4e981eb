"""The experts of a layer: the tokens' choices among them, and the capacity of each."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Annotated

import numpy as np

from commsched.arrays import Floats, Ints
from commsched.errors import CommschedError
from commsched.records import EXACT, NOT_NEGATIVE, POSITIVE, normalise

CAPACITY = 1.25  # source: Fedus et al., "Switch Transformers", JMLR 23(120), 2022, section 2.2


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A mixture of experts: each token is sent to `top` of `count` experts.

    Of the `top` x `tokens` choices of a rank, expert e gets a share: `load` as measured, or else a
    Zipf law, proportional to (e + 1)^-zipf. In each of `groups` equal groups of tokens an expert
    takes at most ceil(capacity x top x tokens / groups / count) tokens; the others are dropped.
    Source: capacity and groups: Lepikhin et al., "GShard", ICLR 2021, section 2.2; top 1: Fedus
    et al., "Switch Transformers", JMLR 23(120), 2022. Holds for groups large enough that an
    expert's share hardly varies; a measured load has no such condition.
    """

    count: Annotated[int, POSITIVE]
    tokens: Annotated[int, POSITIVE]  # of one rank and step
    width: Annotated[int, POSITIVE]  # elements of a token that travel, each way
    top: Annotated[int, POSITIVE] = 1
    groups: Annotated[int, POSITIVE] = 1
    capacity: Annotated[float, EXACT, NOT_NEGATIVE] = CAPACITY
    zipf: Annotated[float, EXACT, NOT_NEGATIVE] = 0.0
    load: tuple[float, ...] = ()  # share of the choices that each expert took; (): by `zipf`

    def __post_init__(self) -> None:
        normalise(self, "experts: ")
        if self.top > self.count:
            raise CommschedError(
                f"experts: top must be at most the {self.count} experts, got {self.top}"
            )
        if self.capacity <= 0.0:
            raise CommschedError(f"experts: capacity must be more than 0, got {self.capacity}")
        if self.tokens % self.groups:
            raise CommschedError(
                f"experts: {self.tokens} tokens do not divide into {self.groups} equal groups"
            )
        if self.load and (
            len(self.load) != self.count
            or not all(0.0 <= share <= 1.0 for share in self.load)
            or not 0.0 < sum(self.load) <= 1.0 + 1e-9
        ):
            raise CommschedError(
                f"experts: load must be {self.count} shares of 0 to 1 that sum to at most 1, got"
                f" {len(self.load)} that sum to {sum(self.load):g}"
            )

    @property
    def slots(self) -> int:
        """Return the tokens that an expert takes at most of one rank."""
        each = self.tokens // self.groups
        fair = ceil(self.capacity * self.top * each / self.count - 1e-9)
        return self.groups * min(max(fair, 1), each)

    @cached_property
    def shares(self) -> Floats:
        """Return the share of the choices that each expert is sent: (count,)."""
        if self.load:
            return np.array(self.load)
        weights = np.arange(1.0, self.count + 1) ** -self.zipf
        found: Floats = weights / weights.sum()
        return found

    @cached_property
    def taken(self) -> Ints:
        """Return the tokens of one rank that each expert takes: (count,)."""
        ends = np.rint(np.cumsum(self.shares) * self.top * self.tokens).astype(np.int64)
        found: Ints = np.minimum(np.diff(ends, prepend=0), self.slots)
        return found

    @property
    def dropped(self) -> int:
        """Return the choices of one rank and step that no expert takes."""
        return self.top * self.tokens - int(self.taken.sum())

    def work_of(self, ranks: int) -> Floats:
        """Return each of `ranks` ranks' work on their experts as a share of the layer's: (ranks,).

        The layer states the work for one rank's own choices, distributed as in `shares`.
        """
        choices = self.shares.sum() * self.top * self.tokens
        found: Floats = self.taken.reshape(ranks, -1).sum(axis=1) * ranks / choices
        return found

    def scaled(self, size: float) -> "Experts":
        """Scale the elements of a token."""
        return replace(self, width=max(1, round(self.width * size)))
