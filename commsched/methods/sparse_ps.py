"""The sparse parameter server: every rank serves a contiguous share of the bucket."""

from commsched.exchange.method import Method, Phase
from commsched.exchange.pair import route
from commsched.exchange.registry import METHODS
from commsched.exchange.shares import pull, push
from commsched.machine.model import Group
from commsched.net.bucket import BucketSpec


class SparseServer(Method):
    """Push coordinate lists of equal shares to their servers, pull the sums straight from them.

    The server with most non-zeros decides the time: if hot rows lie together, it receives and sends
    `skew` times the mean. A baseline; `balanced` has no skew.
    Source: Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014,
    as in Wang et al., "Zen", OSDI 2025.
    """

    name = "sparse-ps"
    lossless = True
    sparse = True
    lists = True

    def phases(self, spec: BucketSpec, group: Group) -> tuple[Phase, ...]:
        cuts = spec.cuts(group.size)
        return (
            push(route("reduce-scatter-direct", group), "coo", spec, cuts),
            pull(route("all-gather-direct", group), "coo", spec, cuts),
        )


METHODS.add("sparse-ps")(SparseServer())
