"""Methods that leave a bucket's sum in shards, one per rank, or gather the bucket from its shards.

Neither puts a sum on every rank, so `METHODS` does not list them; strategies that shard name them.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from commsched.arrays import Array, Floats
from commsched.coding.codec import Codec, State
from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.exchange.method import Ends, Method, Phase, copy_seconds, give_decoded, take_gradient
from commsched.exchange.pair import feedback_seconds, route, take_with_feedback
from commsched.exchange.payload import Payload
from commsched.machine.model import Device, Group
from commsched.net.bucket import BucketSpec
from commsched.plan.model import Plan
from commsched.schedule.circles import ring_all_gather, ring_reduce_scatter
from commsched.schedule.levels import axis_rings
from commsched.schedule.rounds import Goal, Round, Schedule

PREFIX = "shard:"
HYBRID = "hierarchical"  # shards in each node, sums of equal shards between the nodes
LEVELS = ("reduce-scatter-levels", "all-gather-levels")  # shards lane by lane, not rank by rank
SUMS = ("reduce-scatter", "reduce-scatter-direct", LEVELS[0], HYBRID)
ONCE = "reduce-scatter-direct"  # encodes every value once, so that any codec serves
GATHERS = ("all-gather", "all-gather-direct", LEVELS[1])


class Sharded(Method):
    """Sum a bucket into shards, or gather it from its shards: `shard:COLLECTIVE+CODEC`.

    Shards are near-equal runs of the bucket in rank order, uneven by at most one element, without
    padding. A gathered bucket has the packets' decoded values on every rank, the owner included.
    Both `-levels` take a step inside nodes and one between the ranks of a lane, which own
    neighbouring shards, so that only 1 / K of the bytes of K ranks in a node leave it per port.
    With `hierarchical` each node holds all shards: a reduce-scatter in the node, then an
    all-reduce of every shard among its owners.
    Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter
    models", SC 2020; flat shards and hybrid sharding: Zhao et al., "PyTorch FSDP: experiences on
    scaling fully sharded data parallel", VLDB 2023; coded packets: Wang et al., "ZeRO++: extremely
    efficient collective communication for giant model training", arXiv 2306.10209.
    """

    codec: Codec
    sharded = True

    def __init__(self, collective: str, codec: str) -> None:
        self.collective, self.codec = collective, CODECS[codec]
        self.name = f"{PREFIX}{collective}+{self.codec.name}"
        self.lossless = self.codec.lossless
        if collective not in (*SUMS, *GATHERS):
            raise CommschedError(
                f"collective {collective!r} neither makes shards nor gathers them; allowed:"
                f" {', '.join((*SUMS, *GATHERS))}"
            )
        reason = _illegal(collective, self.codec)
        if reason:
            raise CommschedError(f"method {self.name!r}: {reason}")

    @property
    def family(self) -> str:
        return PREFIX + self.collective

    def phases(self, spec: BucketSpec, group: Group) -> tuple[Phase, ...]:
        schedule = _routed(self.collective, group)
        phase = self._gather if self.collective in GATHERS else self._sum
        return (phase(schedule, spec, group),)

    def shard(self, spec: BucketSpec, group: Group, member: int) -> slice:
        """Return the run of the bucket that a member of the group owns."""
        blocks = self._blocks(group, member)
        cuts = spec.cuts(group.size)
        return slice(int(cuts[blocks.start]), int(cuts[blocks.stop]))

    def _blocks(self, group: Group, member: int) -> range:
        """Return the blocks of a member's shard; there are as many shards as members."""
        if self.collective not in (HYBRID, *LEVELS):
            return range(member, member + 1)
        nodes, lane = len(group.members), group.lane_of(member)
        if self.collective == HYBRID:
            return range(lane * nodes, (lane + 1) * nodes)
        node = next(n for n, members in enumerate(group.members) if member in members)
        return range(lane * nodes + node, lane * nodes + node + 1)

    def _sum(self, schedule: Schedule, spec: BucketSpec, group: Group) -> Phase:
        codec = self.codec
        share = len(self._blocks(group, 0)) / group.size

        def ends(member: int) -> Ends:
            return Ends([], [*self._blocks(group, member)])

        def give(state: State, run: Array) -> None:
            state["result"] = run.copy()  # the bucket's memory serves other buckets

        return Phase(
            schedule=schedule,
            payload=Payload.reducing(schedule, codec, spec),
            take=take_with_feedback if codec.feedback else take_gradient,
            give=give,
            take_seconds=lambda device: feedback_seconds(codec, 4.0 * spec.numel, device),
            give_seconds=copy_seconds(4.0 * spec.numel * share),
            ends=ends,
            leaves=share,
        )

    def _gather(self, schedule: Schedule, spec: BucketSpec, group: Group) -> Phase:
        codec, ranks, raw = self.codec, schedule.ranks, 4.0 * spec.numel
        cuts = spec.cuts(ranks)

        def sizes() -> Floats:
            return codec.nbytes(spec, cuts[:-1], cuts[1:], 1)

        def take(state: State) -> Array:
            own = self.shard(spec, group, int(state["rank"]))
            packet = codec.encode(state["gradient"][own], state, own.start)
            # The bucket will be overwritten, so a view would change.
            return packet.copy() if codec.encode_traffic == 0.0 else packet

        def ends(member: int) -> Ends:
            return Ends([*self._blocks(group, member)], list(range(ranks)))

        def take_seconds(device: Device) -> float:
            if codec.encode_traffic == 0.0:
                return copy_seconds(raw / ranks)(device)
            rate = codec.rate(device).at(spec.density)
            return rate.fixed + raw / ranks * rate.encode

        def give_seconds(device: Device) -> float:
            rate = codec.rate(device).at(spec.density)
            decode = rate.decode or 2 / device.bandwidth  # copying dense values into place
            return ranks * rate.per_decode + raw * decode

        return Phase(
            schedule=schedule,
            payload=Payload(codec=codec, sizes=sizes),
            take=take,
            give=give_decoded(codec, cuts),
            take_seconds=take_seconds,
            give_seconds=give_seconds,
            ends=ends,
            reads=1.0 / ranks,
        )


def _illegal(collective: str, codec: Codec) -> str | None:
    """Say why a codec cannot serve; None if it can."""
    if collective in GATHERS:
        if codec.feedback or codec.stateful or not codec.fixed:
            return (
                f"codec {codec.name!r} drops parameters; allowed is what writes each of them, such"
                " as 'dense', 'bf16' or 'quant:8'"
            )
        return None
    if codec.stateful or codec.no_feedback:
        return f"codec {codec.name!r} does not code runs of a sum; nearest: 'dense'"
    if collective != ONCE and not codec.addable:
        return f"codec {codec.name!r} cannot add packets; nearest: '{PREFIX}{ONCE}+{codec.name}'"
    return None


@lru_cache(maxsize=256)
def find_sharded(name: str) -> Sharded:
    """Return the method that a name with the prefix stands for."""
    collective, _, codec = name.removeprefix(PREFIX).partition("+")
    return Sharded(collective, codec or "dense")


def options(collectives: Sequence[str], codecs: Sequence[str]) -> list[Method]:
    """List the legal methods of some collectives and codecs."""
    return [
        Sharded(collective, codec)
        for collective in collectives
        for codec in codecs
        if _illegal(collective, CODECS[codec]) is None
    ]


@lru_cache(maxsize=64)
def _routed(collective: str, group: Group) -> Schedule:
    """Return the schedule that sums shards at their owners, or gathers shards."""
    if collective not in (HYBRID, *LEVELS):
        return route(collective, group)
    lanes = group.lanes
    ranks = np.array(group.members, np.int64)  # (nodes, lanes)
    inside, across = axis_rings(ranks)

    def rounds() -> Iterator[Round]:
        if collective in SUMS:
            yield from ring_reduce_scatter(inside)
            yield from ring_reduce_scatter(across, merged=lanes)
        if collective not in LEVELS:
            yield from ring_all_gather(across, merged=group.size)
        elif collective in GATHERS:
            yield from ring_all_gather(across)
            yield from ring_all_gather(inside)

    return Schedule(
        name=f"{collective}-shards",
        goal=Goal.ALL_GATHER if collective in GATHERS else Goal.REDUCE_SCATTER,
        ranks=group.size,
        blocks=group.size,
        rounds=rounds,
        owner=ranks.T.ravel(),  # of HYBRID one of the owners: all nodes have every shard
    )


def own_places(plan: Plan, index: int, rank: int) -> Iterator[tuple[str, slice, slice]]:
    """Yield the places of a sharded launch's own run on a rank: tensor, there, here.

    `here` counts from the start of the bucket.
    """
    own = shard_of(plan, index, rank)
    for name, there, here in plan.launches[index].places:
        first, stop = max(here.start, own.start), min(here.stop, own.stop)
        if first < stop:
            start = there.start - here.start
            yield name, slice(start + first, start + stop), slice(first, stop)


def shard_of(plan: Plan, index: int, rank: int) -> slice:
    """Return the run of a sharded launch's bucket that a rank owns."""
    launch = plan.launches[index]
    group = plan.group_of(launch, rank)
    assert group is not None
    method = find_sharded(launch.method)
    return method.shard(plan.spec(launch), group, group.ranks.index(rank))
