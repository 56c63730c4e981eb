"""HiTopKComm: `hitopk:SHARE`, dense inside nodes, the largest of a shard between them."""

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.coding import parameters as read
from commsched.coding.codec import State
from commsched.coding.registry import CODECS
from commsched.exchange.method import Method, Phase
from commsched.exchange.node_lanes import NodeLanes, node_lanes
from commsched.exchange.pair import Pair, lost_of
from commsched.exchange.payload import Payload
from commsched.exchange.registry import METHODS
from commsched.kernels.finite_check import finite
from commsched.machine.model import Device, Group
from commsched.methods.zen import reduce_inside, spread_inside
from commsched.net.bucket import BucketSpec

STANDARD = "hitopk:0.01"


class HiTopK(Method):
    """Reduce-scatter in the node, all-gather the shard's largest along the lane, spread densely.

    The shard's largest values are found by bisection (MSTopK); lane k of a node keeps the unsent
    part of the node's sum of its shard. m nodes of n ranks, N elements, k = SHARE N:
    2 (n - 1) (a1 + 4 N / n b1) + (m - 1) (a2 + 8 k / n b2), and the time to select, for latencies a
    and seconds per byte b inside (1) and between nodes (2). Good if links inside nodes are
    fast. On one level, and on nodes with different numbers of ranks, every rank gathers its own
    largest values.
    Source: Shi et al., "Towards scalable distributed training of deep learning on public cloud
    clusters", MLSys 2021, arXiv 2010.10458.
    """

    lossless = False

    def __init__(self, share: float) -> None:
        self.name = f"hitopk:{read.written(share)}"
        self._codec = CODECS[f"topk:{read.written(share)}:bisect"]

    def phases(self, spec: BucketSpec, group: Group) -> tuple[Phase, ...]:
        two = node_lanes(group)
        if two is None:
            return Pair("all-gather-direct", self._codec.name).phases(spec, group)
        cuts = spec.cuts(two.lanes)
        return (
            reduce_inside(two, spec, cuts),
            self._between(two, spec, cuts),
            spread_inside(two, spec, cuts),
        )

    def _between(self, two: NodeLanes, spec: BucketSpec, cuts: Ints) -> Phase:
        codec, raw = self._codec, 4.0 * spec.numel / two.lanes

        def sizes() -> Floats:
            return codec.nbytes(spec, cuts[:-1], cuts[1:], two.lanes)

        def shard(state: State) -> slice:
            lane = int(two.lane[state["rank"]])
            return slice(int(cuts[lane]), int(cuts[lane + 1]))

        def take(state: State) -> Array:
            at = shard(state)
            lost = lost_of(state)[at]
            with np.errstate(over="ignore", invalid="ignore"):
                wanted = state["gradient"][at] + lost
            packet = codec.encode(wanted, state, at.start)
            if finite(wanted):
                codec.subtract(packet, wanted)
                lost[:] = wanted
            return packet

        def give(state: State, packets: list[Array]) -> None:
            codec.combine(packets, state["gradient"][shard(state)])

        def take_seconds(device: Device) -> float:
            rate = codec.rate(device)
            return rate.fixed + raw * (rate.encode + codec.feedback_rate(device))

        def give_seconds(device: Device) -> float:
            rate = codec.rate(device)
            received = rate.per_add + float(sizes().mean()) * rate.add
            return rate.per_decode + raw * rate.decode + (two.nodes - 1) * received

        return Phase(
            name="between",
            schedule=two.pull,
            payload=Payload(codec=codec, sizes=sizes, repeat=two.nodes),
            take=take,
            give=give,
            take_seconds=take_seconds,
            give_seconds=give_seconds,
            ends=two.pull_ends,
        )


@METHODS.family(STANDARD)
def hitopk(parameters: list[str]) -> HiTopK:
    """Read SHARE."""
    read.at_most(parameters, 1)
    return HiTopK(read.share(parameters[0]))
