"""Hierarchical centralisation: pairs of ranks merge whole lists, then pairs of pairs, and so on."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.coding.codec import State
from commsched.coding.coordinates import open_coordinates, pack_coordinates
from commsched.coding.packet import HEADER
from commsched.coding.registry import CODECS
from commsched.exchange.lists import left, merge_seconds, taken
from commsched.exchange.method import Ends, Method, Phase, copy_seconds
from commsched.exchange.payload import Payload
from commsched.exchange.registry import METHODS
from commsched.kernels.merge import Listed, merged
from commsched.machine.model import Device, Group
from commsched.net.bucket import BucketSpec
from commsched.schedule.fold import fold
from commsched.schedule.nesting import tree_order
from commsched.schedule.rounds import Goal, Round, Schedule

SUM = "centralised sum"  # state key: the list of this rank's sums


class Centralised(Method):
    """Swap lists of sums with a partner at distance 1, 2, 4, ... and merge.

    Every rank sends sum over i = 1..log2 p of g_(2^(i-1)) 8 d N bytes, g_k = d_k / d; if p is not a
    power of two, the other ranks first lend their lists to a neighbour. `doubling+coo` sends the
    same bytes, but looks for the non-zeros of the whole bucket in every round; here lists are
    merged. Good if supports hardly overlap, or if latency dominates.
    Source: Wang et al., "Zen", OSDI 2025 (hierarchical centralisation); Renggli et al., "SparCML",
    SC 2019 (SSAR recursive doubling).
    """

    name = "centralised"
    lossless = True
    sparse = True
    lists = True

    def phases(self, spec: BucketSpec, group: Group) -> tuple[Phase, ...]:
        found = stages(group)
        last = len(found) - 1
        return tuple(
            _phase(spec, stage, number == 0, number == last) for number, stage in enumerate(found)
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class MergeStage:
    """One round: the receiver of each list."""

    name: str
    schedule: Schedule
    source: Ints  # (p,) whose list a rank gets, or -1
    place: Ints  # (p,) lists are added in the order of places
    summed: Ints  # (p,) ranks in each rank's list before
    keeps: bool  # adds to its own list; otherwise replaces it


@lru_cache(maxsize=64)
def stages(group: Group) -> tuple[MergeStage, ...]:
    """Fold the ranks beyond a power of two in, double, and fold them out."""
    order = tree_order(group)
    on = fold(order)
    place = np.empty(group.size, np.int64)
    place[order] = np.arange(group.size)
    summed, found = np.ones(group.size, np.int64), []

    def stage(name: str, src: Ints, dst: Ints, keeps: bool = True) -> None:
        source = np.full(group.size, -1)
        source[dst] = src
        schedule = _schedule(f"centralise-{name}", group.size, src, dst)
        found.append(
            MergeStage(
                name=name,
                schedule=schedule,
                source=source,
                place=place,
                summed=summed.copy(),
                keeps=keeps,
            )
        )
        summed[dst] = summed[src] + (summed[dst] if keeps else 0)

    if len(on.idle):
        stage("fold-in", on.idle, on.hosts)
    distance = 1
    while distance < len(on.active):
        partner = on.active[np.arange(len(on.active)) ^ distance]
        stage(f"distance-{distance}", on.active, partner)
        distance *= 2
    if len(on.idle):
        stage("fold-out", on.hosts, on.idle, keeps=False)
    if not found:
        stage("", on.idle, on.idle)
    return tuple(found)


def _schedule(name: str, ranks: int, src: Ints, dst: Ints) -> Schedule:
    """Make one round in which `src` send their block, one per rank."""
    rounds = [Round(src, dst, src, src + 1, False, 1, waits=0)] if len(src) else []
    return Schedule(
        name=name, goal=Goal.ALL_GATHER, ranks=ranks, blocks=ranks, rounds=lambda: iter(rounds)
    )


def _phase(spec: BucketSpec, stage: MergeStage, first: bool, last: bool) -> Phase:
    """Make one stage, an exchange of lists."""
    zero, numel = np.zeros(1, np.int64), np.array([spec.numel])
    sends = np.zeros(len(stage.source), np.bool_)
    sends[stage.source[stage.source >= 0]] = True

    def sizes() -> Floats:
        return HEADER + 8.0 * spec.nonzeros(zero, numel, stage.summed)

    def longest() -> float:
        return float((sizes() * sends).max())

    def take(state: State) -> Array:
        if first:
            state[SUM] = taken(state)
        return pack_coordinates(*state[SUM]) if sends[state["rank"]] else np.zeros(0, np.uint8)

    def give(state: State, packets: list[Array]) -> None:
        rank = int(state["rank"])
        for packet in packets:  # one or none
            came = Listed(*open_coordinates(packet, spec.numel))
            both = [state[SUM], came] if stage.keeps else [came]
            if stage.place[stage.source[rank]] < stage.place[rank]:
                both.reverse()
            state[SUM] = merged(both, spec.numel)
        if last:
            left(state, state.pop(SUM))

    def ends(rank: int) -> Ends:
        source = int(stage.source[rank])
        return Ends([rank], [] if source < 0 else [source])

    def take_seconds(device: Device) -> float:
        rate = CODECS["coo"].rate(device).at(spec.density)
        scan = spec.all_raw * rate.encode if first else 0.0
        return rate.fixed + scan + copy_seconds(longest())(device)

    def give_seconds(device: Device) -> float:
        rate = CODECS["coo"].rate(device)
        written = spec.all_raw * rate.decode if last else 0.0
        return rate.per_decode + merge_seconds(2 * longest() / 8.0)(device) + written

    return Phase(
        name=stage.name,
        schedule=stage.schedule,
        payload=Payload(codec=CODECS["coo"], sizes=sizes),
        take=take,
        give=give,
        take_seconds=take_seconds,
        give_seconds=give_seconds,
        ends=ends,
    )


METHODS.add(Centralised.name)(Centralised())
