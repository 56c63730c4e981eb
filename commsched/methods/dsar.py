"""SparCML's DSAR: sums with many non-zeros are gathered densely."""

from dataclasses import replace

import numpy as np

from commsched.exchange.method import Choice, Method, Phase
from commsched.exchange.pair import route
from commsched.exchange.registry import METHODS
from commsched.exchange.shares import pull, push
from commsched.kernels.select import COUNTED_BYTES, count_nonzero
from commsched.machine.model import Device, Group
from commsched.net.bucket import BucketSpec


class DenseSwitch(Method):
    """SSAR split; if more than half of the sum is not zero, ranks gather dense values.

    The ranks add up the non-zeros of their shares: 8 B each way to agree.
    Source: Renggli et al., "SparCML", SC 2019 (DSAR_Split_allgather, switch at nnz > N / 2).
    """

    name = "dsar"
    lossless = True
    sparse = True

    def phases(self, spec: BucketSpec, group: Group) -> tuple[Phase | Choice, ...]:
        cuts = spec.cuts(group.size)
        whole = np.zeros(1, np.int64), np.array([spec.numel])

        def vote_seconds(device: Device) -> float:
            return COUNTED_BYTES * spec.numel / group.size / device.bandwidth

        def then(filled: float) -> Phase:
            codec = "dense" if 2 * filled > spec.numel else "coo"
            made = pull(route("all-gather", group), codec, spec, cuts)
            return replace(made, vote_seconds=vote_seconds)

        return (
            push(route("reduce-scatter-direct", group), "coo", spec, cuts),
            Choice(
                name="pull",
                vote=lambda state: float(count_nonzero(state["share"])),
                agree="sum",
                expected=float(spec.nonzeros(*whole, group.size)[0]),
                then=then,
            ),
        )


METHODS.add("dsar")(DenseSwitch())
