"""Gradients of buckets that are not full yet, which are handed over together."""

from collections import Counter
from typing import Any, NamedTuple

from commsched.run.exchanger import Exchanger
from commsched.torch.hooks import all_ours
from commsched.torch.parameters import handed_over


class Came(NamedTuple):
    """A gradient that backward has computed."""

    name: str
    gradient: Any
    lent: bool  # nothing changes the gradient until its mean arrives


class UnfilledBuckets:
    """Gradients that wait until one of them fills a bucket, and are then handed over at once.

    A bucket cannot be exchanged before it is full. Compute between two gradients fills the
    processor's cache, so a separate hand-over takes several times as long as one of many in a row.
    """

    def __init__(self, rows: set[str]) -> None:
        self._rows = rows  # tensors known to have gradients of rows
        self._came: list[Came] = []
        self._sizes: Counter[int] = Counter()  # launch -> number of its slices
        self._places: Any = None  # slices of tensors from which `_sizes` was counted
        self._left: dict[int, int] = {}  # launch -> its slices without a gradient so far

    def add(self, name: str, parameter: Any) -> bool:
        """Store a gradient; return whether it may wait: not if the user has a hook on it.

        The user's hook may change the gradient at any time.
        """
        lent = all_ours(parameter)
        self._came.append(Came(name, parameter.grad, lent))
        return lent

    def begin(self, exchanger: Exchanger) -> None:
        """Hand over the first gradient of a step; the hand-over may change the buckets."""
        self.hand_over(exchanger)
        if exchanger.places is not self._places:
            self._places = exchanger.places
            self._sizes = Counter(p.launch for each in self._places.values() for p in each)
        self._left = dict(self._sizes)

    def fills(self, name: str) -> bool:
        """Count a gradient; tell whether it fills a bucket."""
        full = False
        for place in self._places[name]:
            self._left[place.launch] -= 1
            full |= not self._left[place.launch]
        return full

    def hand_over(self, exchanger: Exchanger) -> None:
        """Hand over all stored gradients."""
        for name, gradient, lent in self._came:
            given = handed_over(name, gradient)
            if isinstance(given, tuple):
                self._rows.add(name)
            exchanger.ready(name, given, lent=lent)
        self._came.clear()
