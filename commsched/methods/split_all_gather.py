"""SparCML's split all-gather: sparse sums at their owners, then a sparse all-gather."""

from commsched.exchange.method import Method, Phase
from commsched.exchange.pair import route
from commsched.exchange.registry import METHODS
from commsched.exchange.shares import pull, push
from commsched.machine.model import Group
from commsched.net.bucket import BucketSpec


class SplitAllGather(Method):
    """SSAR split: coordinate lists of equal shares go straight to their owners, sums in a ring.

    2 (p - 1) messages per rank; every non-zero goes once to its owner, every non-zero sum once
    to each rank. Good if supports overlap, so that lists do not grow as in recursive doubling.
    Source: Renggli et al., "SparCML", SC 2019 (SSAR_Split_allgather).
    """

    name = "split-all-gather"
    lossless = True
    sparse = True

    def phases(self, spec: BucketSpec, group: Group) -> tuple[Phase, ...]:
        cuts = spec.cuts(group.size)
        return (
            push(route("reduce-scatter-direct", group), "coo", spec, cuts),
            pull(route("all-gather", group), "coo", spec, cuts),
        )


METHODS.add("split-all-gather")(SplitAllGather())
