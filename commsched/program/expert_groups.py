"""The teams of a plan under expert parallelism, and its launches by layer."""

from collections.abc import Sequence

import numpy as np

from commsched.errors import CommschedError
from commsched.net.graph import Layer
from commsched.plan.model import Plan

DISPATCH, COMBINE = "dispatch", "combine"  # purposes: tokens to experts, and back
Teams = tuple[tuple[int, ...], int]  # `group` and `split` of a launch


class ExpertGroups:
    """The teams and launches of a plan whose net is one rank's part."""

    def __init__(self, plan: Plan) -> None:
        size, self.width = plan.machine.size, plan.net.experts
        if size % self.width:
            raise CommschedError(
                f"strategy {plan.strategy!r}: {size} ranks do not divide into teams of"
                f" {self.width}; nearest: {max(size // self.width, 1) * self.width} ranks"
            )
        self._plan = plan
        self._ranks = np.arange(size).reshape(-1, self.width)  # (replicas, places)
        self.sums = sorted(
            (i for i, x in enumerate(plan.launches) if x.payload == "gradient"),
            key=lambda i: plan.launches[i].priority,
        )

    @property
    def teams(self) -> Teams:
        """Return the ranks that share experts, team after team."""
        return tuple(self._ranks.ravel().tolist()), len(self._ranks)

    @property
    def replicas(self) -> Teams:
        """Return the ranks that hold the same experts, place after place."""
        return tuple(self._ranks.T.ravel().tolist()), self.width

    def work(self, layer: Layer) -> Sequence[float]:
        """Return each place's work in a layer, as a share of the work that the layer states."""
        if layer.experts is None:
            return [1.0]
        found: list[float] = layer.experts.work_of(self.width).tolist()
        return found

    def sums_after(self, layer: str) -> list[int]:
        """Return the launches of gradients that a layer's backward completes."""
        return [i for i in self.sums if self._plan.launches[i].after == layer]

    def launch(self, layer: str, purpose: str) -> int:
        """Return the launch that sends a layer's tokens to its experts, or back."""
        for index, launch in enumerate(self._plan.launches):
            if (launch.after, launch.purpose) == (layer, purpose):
                return index
        raise CommschedError(
            f"strategy {self._plan.strategy!r}: no launch has purpose {purpose!r} for layer"
            f" {layer!r}"
        )
