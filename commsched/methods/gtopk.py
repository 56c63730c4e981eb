"""gTop-k: `gtopk:SHARE`, a tree whose every merge keeps the largest of the sum."""

from dataclasses import replace

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.codecs.topk import TopK
from commsched.coding import parameters as read
from commsched.coding.codec import State
from commsched.coding.selection import HEADER
from commsched.exchange.method import Method, Phase
from commsched.exchange.pair import feedback_seconds, lost_of, route, take_with_feedback
from commsched.exchange.payload import Payload
from commsched.exchange.registry import METHODS
from commsched.machine.model import CodecRate, Device, Group
from commsched.net.bucket import BucketSpec

STANDARD = "gtopk:0.01"


class Merging(TopK):
    """Top-k of sums of top-k: the merging rank keeps the dropped rest, so packets never grow."""

    addable = True

    def nbytes(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        count = np.ceil(self._share * np.asarray(stop - start, np.float64))
        found: Floats = HEADER + 8.0 * np.minimum(count, spec.nonzeros(start, stop, merged))
        return found

    def rate(self, device: Device) -> CodecRate:
        """Return the seconds per byte; the sender, too, continues with the decoded values."""
        rate = super().rate(device)
        return replace(rate, encode=rate.encode + rate.decode)


class GlobalTopK(Method):
    """Send the largest k up a tree, merge and keep the largest k, and send the root's k down.

    2 ceil(log2 p) rounds of 8 k bytes: what a rank receives grows with log p, not with p as in an
    all-gather. Good for many ranks and small k. The rank that merges keeps the dropped values, and
    offers them again in the next step.
    Source: Shi et al., "A distributed synchronous SGD algorithm with global top-k sparsification
    for low bandwidth networks", ICDCS 2019, arXiv 1901.04359.
    """

    lossless = False

    def __init__(self, share: float) -> None:
        self.name = f"gtopk:{read.written(share)}"
        self._codec = Merging(share, "exact")

    def phases(self, spec: BucketSpec, group: Group) -> tuple[Phase, ...]:
        schedule = route("tree", group)

        def take(state: State) -> Array:
            lost_of(state)
            return take_with_feedback(state)

        return (
            Phase(
                schedule=schedule,
                payload=Payload(codec=self._codec, cuts=spec.cuts(schedule.blocks), spec=spec),
                take=take,
                take_seconds=lambda device: feedback_seconds(self._codec, 4.0 * spec.numel, device),
            ),
        )


@METHODS.family(STANDARD)
def gtopk(parameters: list[str]) -> GlobalTopK:
    """Read SHARE."""
    read.at_most(parameters, 1)
    return GlobalTopK(read.share(parameters[0]))
