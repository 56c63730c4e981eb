"""Gradients of buckets that are not full yet: they are handed over together."""

from collections import Counter
from typing import Any, NamedTuple

from commsched.run.exchanger import Exchanger
from commsched.torch.hooks import all_ours
from commsched.torch.parameters import handed_over


class Came(NamedTuple):
    """A gradient that is there."""

    name: str
    gradient: Any
    lent: bool  # nobody changes it until its mean is there


class UnfilledBuckets:
    """Keeps gradients until one of them fills a bucket, and hands over all at once.

    A bucket cannot travel before. Between two gradients the computation takes the processor's
    cache: a hand-over of its own takes several times as long as one of many in a row.
    """

    def __init__(self, rows: set[str]) -> None:
        self._rows = rows  # the tensors whose gradients are lists of rows, as far as is known
        self._came: list[Came] = []
        self._sizes: Counter[int] = Counter()  # launch -> its tensors
        self._places: Any = None  # where tensors travel, as `_sizes` counts them
        self._left: dict[int, int] = {}  # launch -> its tensors that have not come

    def add(self, name: str, parameter: Any) -> bool:
        """Keep a gradient; tell whether it may wait, which a hook of the user's does not allow.

        One that comes later may change the gradient at any time.
        """
        lent = all_ours(parameter)
        self._came.append(Came(name, parameter.grad, lent))
        return lent

    def begin(self, exchanger: Exchanger) -> None:
        """Hand over the first gradient of a step, which may change what buckets there are."""
        self.hand_over(exchanger)
        if exchanger.places is not self._places:
            self._places = exchanger.places
            self._sizes = Counter(p.launch for each in self._places.values() for p in each)
        self._left = dict(self._sizes)

    def fills(self, name: str) -> bool:
        """Count a gradient that came; tell whether it fills a bucket."""
        full = False
        for place in self._places[name]:
            self._left[place.launch] -= 1
            full |= not self._left[place.launch]
        return full

    def hand_over(self, exchanger: Exchanger) -> None:
        """Hand over what is kept."""
        for name, gradient, lent in self._came:
            given = handed_over(name, gradient)
            if isinstance(given, tuple):
                self._rows.add(name)
            exchanger.ready(name, given, lent=lent)
        self._came.clear()
