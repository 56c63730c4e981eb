"""Ours for two levels: sums of nodes, coded near their entropy, go once to every other node."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from commsched.codecs import CODECS, Array, State, coo, elias
from commsched.codecs.packet import HEADER, tag_of
from commsched.collectives.circle import Circles, circles, rotated_all_gather
from commsched.kernels.merge import Listed, listed, merged
from commsched.machine import Device, Group
from commsched.methods.base import Ends, Method, Phase, Pieces, copy_seconds
from commsched.methods.payload import Payload
from commsched.methods.table import METHODS
from commsched.methods.teams import rotated_all_to_all
from commsched.plan.bucket import BucketSpec
from commsched.schedule import Goal, Round, Schedule

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

PIECE = 2**15  # B of a packet from which on it is worth to be cut in two
MOST = 16  # pieces: a message costs some 50 us of a core here


class NodeUnion(Method):
    """Lists inside the node to owners of shares, Elias-Fano coded unions between nodes, and back.

    Lane k of a node sums share k of its node's gradients and sends it to lane k of every other
    node, in pieces that are coded while others are on the wire; the sums of all nodes are then
    shared inside the node. Each node receives the union of each other node once:
    (N - 1) (4 + (2 + log2(1 / d_K)) / 8) d_K n bytes for n elements, N nodes of K ranks. Good
    where the node's port is what is short, and unions overlap little; the more nodes, the sparser
    it must be. One node: split all-gather. Nodes with different numbers of ranks count as none.
    """

    name = "node-union"
    lossless = True
    lists = True

    def phases(self, spec: BucketSpec, group: Group) -> tuple[Phase, ...]:
        union = Union(spec=spec, ranks=levels(group))
        found = [union.merge()] if union.lanes > 1 else []
        if union.nodes > 1 or union.lanes == 1:
            found.append(union.between())
        return (*found, union.share()) if union.lanes > 1 else tuple(found)


def levels(group: Group) -> tuple[tuple[int, ...], ...]:
    """Members by node and lane; nodes that differ are taken apart."""
    alike = len({len(members) for members in group.members}) == 1
    return group.members if alike else tuple((rank,) for rank in range(group.size))


@dataclass(frozen=True, kw_only=True)
class Union:
    """The phases of a bucket. State keys: "own" (a list of the node's share), "came", "sums"."""

    spec: BucketSpec
    ranks: tuple[tuple[int, ...], ...]  # (nodes, lanes)

    @cached_property
    def places(self) -> Ints:
        """Node and lane of each rank: (2, p)."""
        ranks = np.array(self.ranks, np.int64)
        found = np.empty((2, ranks.size), np.int64)
        found[0, ranks] = np.arange(self.nodes)[:, np.newaxis]
        found[1, ranks] = np.arange(self.lanes)
        return found

    @property
    def nodes(self) -> int:
        return len(self.ranks)

    @property
    def lanes(self) -> int:
        return len(self.ranks[0])

    @cached_property
    def cuts(self) -> Ints:
        """Where each lane's share begins: (lanes + 1,)."""
        return self.spec.cuts(self.lanes)

    @cached_property
    def count(self) -> int:
        """Pieces of each share between nodes."""
        whole = elias.Elias().nbytes(self.spec, self.cuts[:1], self.cuts[1:2], self.lanes)
        return int(np.clip(float(whole[0]) // PIECE, 1, MOST))

    @cached_property
    def piece_cuts(self) -> Ints:
        """Where each piece of a share begins: (lanes, count + 1)."""
        length = np.diff(self.cuts)[:, np.newaxis]
        return self.cuts[:-1, np.newaxis] + np.arange(self.count + 1) * length // self.count

    @property
    def raw(self) -> float:
        """Bytes of the values of one share."""
        return 4.0 * self.spec.numel / self.lanes

    def lane_of(self, state: State) -> int:
        return int(self.places[1, state["rank"]])

    def size_of(self, state: State) -> int:
        """Elements in this rank's share."""
        lane = self.lane_of(state)
        return int(self.cuts[lane + 1] - self.cuts[lane])

    def merge(self) -> Phase:
        """Inside nodes: every rank sends each lane its share as a list, who sums them."""
        nodes, lanes = self.nodes, self.lanes
        filled = self.spec.nonzeros(self.cuts[:-1], self.cuts[1:], 1)

        def take(state: State) -> list[Array]:
            whole = _taken(state)
            ends = np.searchsorted(whole.index, self.cuts).tolist()
            return [
                coo.pack(whole.index[a:b] - start, whole.values[a:b])
                for a, b, start in zip(ends, ends[1:], self.cuts.tolist(), strict=False)
            ]

        def give(state: State, packets: list[Array]) -> None:
            numel = self.size_of(state)
            state["own"] = merged([Listed(*coo.Coo.open(p, numel)) for p in packets], numel)

        def take_seconds(device: Device) -> float:
            rate = CODECS["coo"].rate(device)
            return rate.fixed + 4.0 * self.spec.numel * rate.encode

        def give_seconds(device: Device) -> float:
            rate = CODECS["coo"].rate(device)
            each = rate.fixed + 8.0 * float(filled.mean()) * rate.add
            return lanes * each + copy_seconds(self.raw)(device)

        return Phase(
            name="merge",
            schedule=_inside(self.ranks)[0],
            payload=Payload(
                codec=CODECS["coo"], sizes=lambda: np.tile(HEADER + 8.0 * filled, nodes * lanes)
            ),
            take=take,
            give=give,
            take_seconds=take_seconds,
            give_seconds=give_seconds,
            ends=self._merge_ends,
        )

    def _merge_ends(self, rank: int) -> Ends:
        node, lane = self.places[:, rank].tolist()
        k = self.lanes
        first = node * k * k
        return Ends(
            [first + lane * k + to for to in range(k)], [first + s * k + lane for s in range(k)]
        )

    def between(self) -> Phase:
        """Between nodes: every lane gathers the pieces of its share of all nodes, and sums them."""
        nodes, count, cuts = self.nodes, self.count, self.piece_cuts

        def sizes() -> Floats:
            first, stop = cuts[:, :-1].ravel(), cuts[:, 1:].ravel()
            return CODECS["elias"].nbytes(self.spec, first, stop, self.lanes)

        def bounds(state: State, piece: int) -> tuple[int, int]:
            lane = self.lane_of(state)
            first, stop = (cuts[lane, piece : piece + 2] - cuts[lane, 0]).tolist()
            return first, stop

        def take(state: State) -> None:
            if self.lanes == 1:
                state["own"] = _taken(state)
            node = int(self.places[0, state["rank"]])
            own = [state["own"].part(*bounds(state, piece)) for piece in range(count)]
            state["came"] = [{node: piece} for piece in own]
            state["sums"] = [None] * count
            for piece in range(count if nodes == 1 else 0):
                close(state, piece)

        def make(state: State, block: int) -> Array:
            first, stop = bounds(state, block % (count * nodes) // nodes)
            own = state["own"].part(first, stop)
            return elias.pack_list(own.index, own.values, stop - first)

        def read(state: State, block: int, packet: Array) -> None:
            piece, node = divmod(block % (count * nodes), nodes)
            first, stop = bounds(state, piece)
            state["came"][piece][node] = _opened(packet, stop - first)
            if len(state["came"][piece]) == nodes:
                close(state, piece)

        def close(state: State, piece: int) -> None:
            first, stop = bounds(state, piece)
            came = state["came"][piece]
            total = merged([came[node] for node in range(nodes)], stop - first)
            state["sums"][piece] = Listed(total.index + first, total.values)
            state["came"][piece] = {}

        def give(state: State, nothing: Array) -> None:
            state["own"] = Listed(*map(np.concatenate, zip(*state["sums"], strict=True)))
            if self.lanes == 1:
                _leave(state, [state["own"]])

        def take_seconds(device: Device) -> float:
            rate = CODECS["elias"].rate(device)
            return count * rate.fixed + self.raw * rate.encode

        def give_seconds(device: Device) -> float:
            rate = CODECS["elias"].rate(device)
            each = count * rate.fixed + float(sizes().sum()) / self.lanes * rate.add
            return nodes * each + copy_seconds(self.raw)(device)

        return Phase(
            name="between" if self.lanes > 1 else "",
            schedule=_between(self.ranks, count),
            payload=Payload(codec=CODECS["elias"], sizes=sizes, repeat=nodes),
            take=take,
            give=give,
            take_seconds=take_seconds,
            give_seconds=give_seconds,
            pieces=Pieces(make, read),
        )

    def share(self) -> Phase:
        """Inside nodes: every lane's sums go to all, as a list or whatever is smaller."""
        total = self.nodes * self.lanes

        def sizes() -> Floats:
            first, stop = self.cuts[:-1], self.cuts[1:]
            filled = self.spec.nonzeros(first, stop, total)
            coded = CODECS["elias"].nbytes(self.spec, first, stop, total)
            found = np.where(2 * filled < stop - first, HEADER + 8.0 * filled, coded)
            return np.tile(found, self.nodes)

        def take(state: State) -> Array:
            index, values = state["own"]
            numel = self.size_of(state)
            if 2 * len(index) < numel:
                return coo.pack(index, values)
            return elias.pack_list(index, values, numel)

        def give(state: State, packets: list[Array]) -> None:
            cuts = self.cuts.tolist()
            lists = []
            for packet, first, stop in zip(packets, cuts, cuts[1:], strict=False):
                index, values = _opened(packet, stop - first)
                lists.append(Listed(index + first, values))
            _leave(state, lists)

        def give_seconds(device: Device) -> float:
            rate = CODECS["coo"].rate(device)
            received = float(sizes().sum()) / self.nodes
            values = 4.0 * self.spec.numel
            return self.lanes * rate.fixed + received * rate.add + values / device.bandwidth

        return Phase(
            name="share",
            schedule=_inside(self.ranks)[1],
            payload=Payload(codec=CODECS["coo"], sizes=sizes),
            take=take,
            give=give,
            take_seconds=lambda device: copy_seconds(self.raw)(device),
            give_seconds=give_seconds,
            ends=self._share_ends,
        )

    def _share_ends(self, rank: int) -> Ends:
        node, lane = self.places[:, rank].tolist()
        first = node * self.lanes
        return Ends([first + lane], [first + k for k in range(self.lanes)])


def _taken(state: State) -> Listed:
    """The non-zeros of this rank's gradient."""
    return Listed(*state["list"]) if "list" in state else listed(state["gradient"])


def _leave(state: State, lists: list[Listed]) -> None:
    """Leave ascending lists of the sum as the caller wants it."""
    if "list" in state:
        state["list"] = Listed(*map(np.concatenate, zip(*lists, strict=True)))
        return
    values = state["result"] = state["gradient"]
    values.fill(0)
    for index, sums in lists:
        values[index] = sums


def _opened(packet: Array, numel: int) -> Listed:
    """The list in a packet of either form."""
    if tag_of(packet) == coo.TAG:
        return Listed(*coo.Coo.open(packet, numel))
    index, values = elias.open_list(packet, numel)
    return listed(values) if isinstance(index, slice) else Listed(index, values)


@lru_cache(maxsize=64)
def _inside(members: tuple[tuple[int, ...], ...]) -> tuple[Schedule, Schedule]:
    """All-to-all of blocks (node, from, to) and all-gather of (node, lane), inside all nodes."""
    ranks = np.array(members, np.int64)
    nodes, lanes = ranks.shape
    node, lane = np.empty((2, ranks.size), np.int64)
    node[ranks] = np.arange(nodes)[:, np.newaxis]
    lane[ranks] = np.arange(lanes)
    block = node[ranks] * lanes + lane[ranks]
    on = circles(ranks, block, block + 1)
    merge = Schedule(
        name="node-all-to-all",
        goal=Goal.ALL_TO_ALL,
        ranks=ranks.size,
        blocks=nodes * lanes * lanes,
        rounds=lambda: rotated_all_to_all(on, lane, node),
    )
    share = Schedule(
        name="node-all-gather-direct",
        goal=Goal.ALL_GATHER,
        ranks=ranks.size,
        blocks=nodes * lanes,
        rounds=lambda: rotated_all_gather(on),
    )
    return merge, share


@lru_cache(maxsize=64)
def _between(members: tuple[tuple[int, ...], ...], count: int) -> Schedule:
    """All-gather of blocks (lane, piece, node) along all lanes, piece after piece."""
    ranks = np.array(members, np.int64).T
    lanes, nodes = ranks.shape
    first = (np.arange(lanes) * count * nodes)[:, np.newaxis] + np.arange(nodes)
    on = circles(ranks, first, first + 1)
    return Schedule(
        name="lane-all-gather-pieces",
        goal=Goal.ALL_GATHER,
        ranks=ranks.size,
        blocks=lanes * count * nodes,
        rounds=lambda: _piece_after_piece(on, count),
    )


def _piece_after_piece(on: Circles, count: int) -> Iterator[Round]:
    own = on.ahead(on.first, 0)
    receivers = [on.ahead(on.ranks, k) for k in range(1, on.places)]
    for piece in range(count):
        first = own + piece * on.places
        for dst in receivers:
            yield Round(on.src, dst, first, first + 1, False, 1, waits=0)


METHODS.add("node-union")(NodeUnion())
