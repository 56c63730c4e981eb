"""Zen, `zen[:hierarchical]`: dense in nodes; between them lists to hashed owners, bitmaps back."""

from commsched.arrays import Array, Floats, Ints
from commsched.coding import parameters as read
from commsched.coding.codec import State
from commsched.coding.registry import CODECS
from commsched.exchange.hashed_shares import COUNTED, IN_MEMORY, HashedShares
from commsched.exchange.method import Method, Phase, copy_seconds, give_decoded
from commsched.exchange.node_lanes import NodeLanes, node_lanes
from commsched.exchange.pair import route
from commsched.exchange.payload import Payload
from commsched.exchange.registry import METHODS
from commsched.machine.model import Group
from commsched.methods.balanced import everyone
from commsched.net.bucket import BucketSpec


class Zen(Method):
    """Balanced parallelism whose pull writes one bit per element of a part, and the values.

    Both sides know which elements are in a part, I_p = {i : h0(i) = p}, so that the bits of all
    parts together are one per element; below a density of 1/32 of the sum the pull is a coordinate
    list. On several nodes of as many ranks each, lane k reduces 1/K of the bucket densely inside
    its node, sums it sparsely along its lane, and spreads it densely inside its node. With one
    level of n ranks every rank receives (n - 1) / n (2 d + d_n + 1/32) 4 N bytes.

    A rank deals its non-zeros to their owners by counting. `zen:hierarchical` deals as the
    paper does on a GPU: k = 3 tries to write into a parallel memory and to read back, then a serial
    area; a run ends with an error if that area overflows. Parts, packets and bytes are equal. Many
    threads that write at once need this way. A single thread takes 4.7 times as long as by
    counting, which needs no memory that could overflow. On a GPU both ways are kernels.
    Source: Wang et al., "Zen", OSDI 2025.
    """

    lossless = True
    sparse = True
    lists = True

    def __init__(self, hierarchical: bool) -> None:
        self.name = "zen:hierarchical" if hierarchical else "zen"
        self._dealing = IN_MEMORY if hierarchical else COUNTED

    def takes_lists(self, group: Group) -> bool:
        """Tell whether all levels are sparse: nodes of several ranks sum densely inside."""
        return node_lanes(group) is None

    def phases(self, spec: BucketSpec, group: Group) -> tuple[Phase, ...]:
        two = node_lanes(group)
        if two is None:
            hashed = everyone(spec, group, bits=True, dealing=self._dealing)
            return (
                hashed.push(route("all-to-all", group), None),
                hashed.pull(route("all-gather-direct", group), None),
            )
        cuts = spec.cuts(two.lanes)
        hashed = HashedShares(
            spec=spec,
            runs=cuts,
            run_of=lambda rank: int(two.lane[rank]),
            place_of=lambda rank: int(two.node[rank]),
            parts=two.nodes,
            merged=two.lanes,
            bits=True,
            dealing=self._dealing,
        )
        return (
            reduce_inside(two, spec, cuts),
            hashed.push(two.push, two.push_ends),
            hashed.pull(two.pull, two.pull_ends),
            spread_inside(two, spec, cuts),
        )


def reduce_inside(two: NodeLanes, spec: BucketSpec, cuts: Ints) -> Phase:
    """Sum run k of the gradients of a node densely at its lane k, in place."""

    def give(state: State, run: Array) -> None:
        """Store the run as a view of the gradient, where the push looks for it."""

    return Phase(
        name="reduce",
        schedule=two.reduce,
        payload=Payload(codec=CODECS["dense"], cuts=cuts, spec=spec),
        give=give,
        ends=two.reduce_ends,
    )


def spread_inside(two: NodeLanes, spec: BucketSpec, cuts: Ints) -> Phase:
    """Gather the summed runs of a node's lanes densely into the gradient."""
    dense = CODECS["dense"]

    def sizes() -> Floats:
        return dense.nbytes(spec, cuts[:-1], cuts[1:], 1)

    def take(state: State) -> Array:
        lane = int(two.lane[state["rank"]])
        return state["gradient"][cuts[lane] : cuts[lane + 1]]

    return Phase(
        name="spread",
        schedule=two.spread,
        payload=Payload(codec=dense, sizes=sizes),
        take=take,
        give=give_decoded(dense, cuts),
        give_seconds=copy_seconds(4.0 * spec.numel),
        ends=two.spread_ends,
    )


@METHODS.family("zen")
def zen(parameters: list[str]) -> Zen:
    """Read how non-zeros are dealt to their owners."""
    read.at_most(parameters, 1)
    return Zen([read.choice(word, "the way", ("hierarchical",)) for word in parameters] != [])
