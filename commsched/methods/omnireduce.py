"""OmniReduce: only blocks that hold a non-zero go to the owner of their share, and back."""

import numpy as np

from commsched.codecs.block import BLOCK
from commsched.exchange.method import Method, Phase
from commsched.exchange.pair import route
from commsched.exchange.registry import METHODS
from commsched.exchange.shares import pull, push
from commsched.machine.model import Group
from commsched.net.bucket import BucketSpec


class OmniReduce(Method):
    """Push the non-zero blocks of 256 elements to their aggregators, pull the non-zero sums.

    Shares end at blocks. Good if non-zeros lie together; if they are spread evenly, nearly every
    block has one above a density of 1 %.
    Source: Fei et al., "Efficient sparse collective communication and its application to accelerate
    distributed deep learning", SIGCOMM 2021; aggregators on the ranks themselves.
    """

    name = "omnireduce"
    lossless = True
    sparse = True

    def phases(self, spec: BucketSpec, group: Group) -> tuple[Phase, ...]:
        blocks = -(-spec.numel // BLOCK)
        cuts = np.minimum(np.arange(group.size + 1) * blocks // group.size * BLOCK, spec.numel)
        return (
            push(route("reduce-scatter-direct", group), "block", spec, cuts),
            pull(route("all-gather-direct", group), "block", spec, cuts),
        )


METHODS.add("omnireduce")(OmniReduce())
