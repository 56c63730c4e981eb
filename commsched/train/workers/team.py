"""Teams of ranks that hold parts of parameters, and whole parameters from the parts."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from commsched.arrays import Array
from commsched.kernels.modules import on_host
from commsched.train.layers.layer import TrainableNet
from commsched.train.neighbours import Neighbours, around
from commsched.train.workers.learner import flat


class Team(NamedTuple):
    """Consecutive ranks that hold parts of the parameters of a net."""

    net: TrainableNet  # whole
    rank: int
    width: int  # ranks
    experts: bool  # True: the ranks share experts; False: they are tensor-parallel

    def part(self) -> TrainableNet:
        """Return the net with this rank's parts."""
        return self.net.shared(self.rank % self.width, self.width, self.experts)

    def whole(
        self,
        values: Mapping[str, Array],
        others: Neighbours,
        asarray: Callable[[Array], Array],
    ) -> Mapping[str, Array]:
        """Return the whole parameters; `values` are this rank's parts."""
        cuts = {n: start.cut for n, start in self.net.tensors.items()}
        parted = {
            n: cut for n in values if (cut := cuts[n]) is not None and cut.experts == self.experts
        }
        if self.width == 1 or not parted:
            return values
        first = self.rank - self.rank % self.width
        team = range(first, first + self.width)
        own = np.concatenate([on_host(flat(values[name])) for name in parted])
        held = dict(around(others, team, self.rank, own, [len(own)] * self.width))
        found, at = dict(values), 0
        for name, cut in parted.items():
            stop = at + values[name].size
            parts = [held[each][at:stop].reshape(values[name].shape) for each in team]
            found[name], at = asarray(cut.joined(parts)), stop
        return found
