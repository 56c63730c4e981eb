"""Our method for two levels: a node's sum, coded near entropy, goes once to every other node."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.coding.codec import State
from commsched.coding.registry import CODECS
from commsched.exchange.lists import merge_seconds, taken
from commsched.exchange.method import Ends, Method, Phase, Pieces
from commsched.exchange.node_lanes import places_in
from commsched.exchange.payload import Payload
from commsched.exchange.registry import METHODS
from commsched.kernels.merge import Listed, ends, merged
from commsched.machine.model import Device, Group
from commsched.methods.node_union.doubling import Doubling
from commsched.methods.node_union.lists import (
    Left,
    coded,
    coded_bytes,
    compact,
    compact_bytes,
    graded,
    most_bytes,
    opened,
)
from commsched.methods.node_union.routes import gathered, inside
from commsched.net.bucket import BucketSpec

# Saved share of bytes from which on doubling is worth its later start and extra coding.
WORTH = 0.04
PIECE = 2**15  # B of the first packet and of the last packet, for which all ranks wait
DOUBLED = 2  # factor on pieces with recursive doubling, whose steps each sum and code every piece
MOST = 16  # pieces; the smallest piece takes 0.25 ms of a core of every rank


class NodeUnion(Method):
    """Lists inside the node to owners of shares, coded unions between nodes, and back.

    Lane k of a node sums share k of its node's gradients and sends it to lane k of every other
    node, in pieces that are summed and coded while others are on the wire; the sums of all nodes
    are then shared inside the node. By the law, shares and pieces have equally many non-zeros. Each
    node receives the union of each other node once: Elias-Fano lists of values with exponents of
    four bits, (N - 1) (3.5 + (2 + log2(1 / d_K)) / 8) d_K n bytes for n elements, N nodes of K
    ranks; if non-zeros lie in runs, as rows of embeddings do, (N - 1) 3.5 d_K n and little for the
    runs. Lists of more than half of all elements keep float32. If N is a power of two and unions
    overlap so much that recursive doubling saves WORTH of these bytes, pieces are summed on the
    way: d_K + d_2K + ... instead of (N - 1) d_K. Good if the node's port is the bottleneck. On one
    node, or on nodes with different numbers of ranks: split all-gather.
    """

    name = "node-union"
    lossless = True
    sparse = True
    lists = True

    def phases(self, spec: BucketSpec, group: Group) -> tuple[Phase, ...]:
        union = Union(spec=spec, ranks=levels(group))
        if union.overlaps:
            doubling = Doubling(spec=spec, ranks=union.ranks, count=union.worth(DOUBLED * PIECE))
            return (doubling.phase(),)
        return (union.merge(), union.between()) if union.lanes > 1 else (union.between(),)


def levels(group: Group) -> tuple[tuple[int, ...], ...]:
    """Return members by node and lane; nodes of different sizes count as single ranks."""
    alike = len({len(members) for members in group.members}) == 1
    return group.members if alike else tuple((rank,) for rank in range(group.size))


@dataclass(frozen=True, kw_only=True)
class Union:
    """The phases of a bucket.

    State keys: "lists" (of the share, from each lane), "starts" and "ends" (of the lists' pieces),
    "own" (the node's sums, by piece), "came" (other nodes' sums), "sums" (of all nodes, by piece),
    "left" (the sums of all lanes).
    """

    spec: BucketSpec
    ranks: tuple[tuple[int, ...], ...]  # (nodes, lanes)

    @cached_property
    def places(self) -> Ints:
        """Return the node and the lane of each rank: (2, p)."""
        return places_in(np.array(self.ranks, np.int64))

    @property
    def nodes(self) -> int:
        return len(self.ranks)

    @property
    def lanes(self) -> int:
        return len(self.ranks[0])

    @cached_property
    def cuts(self) -> Ints:
        """Return where each lane's share begins: (lanes + 1,)."""
        return self.spec.even_cuts(self.lanes, self.lanes)

    @cached_property
    def shares(self) -> list[tuple[int, int]]:
        """Return the levels as pairs."""
        return list(pairwise(self.cuts.tolist()))

    @cached_property
    def count(self) -> int:
        """Return the pieces of each share between nodes."""
        return self.worth(PIECE)

    def worth(self, piece: int) -> int:
        """Cut a share of a node's sum into pieces; the first has about `piece` bytes."""
        whole = coded_bytes(self.spec, self.cuts[:1], self.cuts[1:2], self.lanes)
        return int(np.clip(2 * np.sqrt(float(whole[0]) / piece) - 1, 1, MOST))

    @cached_property
    def piece_cuts(self) -> Ints:
        """Return where each piece of a share begins, and the end: (lanes, count + 1)."""
        first, last = self.cuts[:-1, np.newaxis], self.cuts[1:, np.newaxis]
        units = graded(self.count)
        place = np.arange(self.lanes)[:, np.newaxis] * units[-1] + units
        inside = self.spec.even_cuts(self.lanes * int(units[-1]), self.lanes)[place]
        return np.where(units < units[-1], np.clip(inside, first, last), last)

    @cached_property
    def expected(self) -> float:
        """Return the non-zeros of the sum of all ranks."""
        ranks = self.nodes * self.lanes
        return float(self.spec.nonzeros(self.cuts[:1], self.cuts[-1:], ranks)[0])

    @property
    def raw(self) -> float:
        """Return the bytes of the values of one share."""
        return self.spec.all_raw / self.lanes

    def lane_of(self, state: State) -> int:
        return int(self.places[1, state["rank"]])

    def size_of(self, state: State) -> int:
        """Return the elements in this rank's share."""
        lane = self.lane_of(state)
        return int(self.cuts[lane + 1] - self.cuts[lane])

    @cached_property
    def overlaps(self) -> bool:
        """Tell whether nodes use recursive doubling, which sends common elements once."""
        if self.nodes < 4 or self.nodes & (self.nodes - 1):
            return False
        steps = self.lanes << np.arange(self.nodes.bit_length() - 1)
        each = coded_bytes(self.spec, self.cuts[:-1], self.cuts[1:], steps[:, np.newaxis])
        return float(each.sum()) < (1 - WORTH) * (self.nodes - 1) * float(each[0].sum())

    def length(self, block: int) -> int:
        """Return the elements of a block (lane, piece)."""
        lane, piece = divmod(block, self.count)
        return int(self.piece_cuts[lane, piece + 1] - self.piece_cuts[lane, piece])

    def cut(self, state: State) -> None:
        """Cut this rank's lists into pieces."""
        if self.lanes == 1:
            state["lists"] = [taken(state)]
        cuts = self.piece_cuts[self.lane_of(state)] - self.cuts[self.lane_of(state)]
        state["starts"] = cuts.tolist()
        state["ends"] = [ends(each.index, cuts) for each in state["lists"]]
        state["own"] = [None] * self.count
        state["came"] = [{} for _ in range(self.count)]
        state["sums"] = [None] * self.count
        state["left"] = Left(
            state, np.append(self.piece_cuts[:, :-1], self.spec.numel), self.expected
        )

    def own(self, state: State, piece: int) -> Listed:
        """Return the node's sum of a piece, made at the first call."""
        own: Listed | None = state["own"][piece]
        if own is None:
            start, stop = state["starts"][piece : piece + 2]
            bounds = [each[piece : piece + 2] for each in state["ends"]]
            parts = [
                Listed(index[a:b] - start, values[a:b])
                for (index, values), (a, b) in zip(state["lists"], bounds, strict=True)
            ]
            own = state["own"][piece] = merged(parts, stop - start)
        return own

    def total(self, state: State, piece: int) -> Listed:
        """Return the sum of a piece of all nodes, added in their order, once all have come."""
        if state["sums"][piece] is None:
            came = state["came"][piece]
            came[int(self.places[0, state["rank"]])] = self.own(state, piece)
            block = self.lane_of(state) * self.count + piece
            found = merged([came[node] for node in range(self.nodes)], self.length(block))
            state["sums"][piece], state["came"][piece] = found, {}
            state["left"].put(block, found)
        total: Listed = state["sums"][piece]
        return total

    def merge(self) -> Phase:
        """Inside nodes: every rank sends each lane its share as a list."""
        nodes, lanes = self.nodes, self.lanes

        def take(state: State) -> list[Array]:
            whole = taken(state)
            bounds = ends(whole.index, self.cuts)
            return [
                compact(Listed(whole.index[a:b], whole.values[a:b]), stop - start, start)
                for (a, b), (start, stop) in zip(pairwise(bounds), self.shares, strict=True)
            ]

        def give(state: State, packets: list[Array]) -> None:
            numel = self.size_of(state)
            state["lists"] = [opened(packet, numel) for packet in packets]

        def sizes() -> Floats:
            each = compact_bytes(self.spec, self.cuts[:-1], self.cuts[1:], 1)
            return np.tile(each, nodes * lanes)

        def take_seconds(device: Device) -> float:
            rate = CODECS["coo"].rate(device).at(self.spec.density)
            return rate.fixed + self.spec.all_raw * rate.encode

        return Phase(
            name="merge",
            schedule=inside(self.ranks),
            payload=Payload(codec=CODECS["coo"], sizes=sizes),
            take=take,
            give=give,
            take_seconds=take_seconds,
            give_seconds=lambda device: lanes * CODECS["coo"].rate(device).per_decode,
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
        """Gather, on every lane, all nodes' pieces of its share, and give the sums to its node.

        A block (lane, piece, node) goes between nodes; the sum of all N blocks of a piece goes
        inside a node.
        """
        nodes, count = self.nodes, self.count

        def make(state: State, first: int, stop: int) -> Array:
            block = first // nodes
            if stop - first == nodes:
                return compact(self.total(state, block % count), self.length(block))
            return coded(self.own(state, block % count), self.length(block))

        def read(state: State, first: int, stop: int, packet: Array) -> None:
            block, node = divmod(first, nodes)
            lane, piece = divmod(block, count)
            came = opened(packet, self.length(block))
            if lane != self.lane_of(state):
                state["left"].put(block, came)
                return
            state["came"][piece][node] = came
            if len(state["came"][piece]) == nodes - 1:
                self.total(state, piece)

        def give(state: State, nothing: Array) -> None:
            for piece in range(count if nodes == 1 else 0):
                self.total(state, piece)
            state.pop("left").end(state)
            for key in ("lists", "starts", "ends", "own", "came", "sums"):
                del state[key]

        return Phase(
            name="between" if self.lanes > 1 else "",
            schedule=gathered(self.ranks, count),
            payload=self._payload(),
            take=self.cut,
            give=give,
            take_seconds=self._take_seconds,
            within_seconds=self._within_seconds,
            pieces=Pieces(make, read, lambda at, _: most_bytes(self.length(at // nodes))),
        )

    def _payload(self) -> "Unions":
        first, stop = self.piece_cuts[:, :-1].ravel(), self.piece_cuts[:, 1:].ravel()
        return Unions(
            codec=CODECS["elias"],
            sizes=lambda: coded_bytes(self.spec, first, stop, self.lanes),
            sums=lambda: compact_bytes(self.spec, first, stop, self.nodes * self.lanes),
            repeat=self.nodes,
        )

    def _take_seconds(self, device: Device) -> float:
        if self.nodes == 1:
            return CODECS["coo"].rate(device).fixed
        rate = CODECS["elias"].rate(device).again()
        return self.count * rate.fixed + self.raw * rate.encode

    def _within_seconds(self, device: Device) -> float:
        """Return the seconds to sum lists of the node, to add those of nodes, to store the sums."""
        coded, plain = CODECS["elias"].rate(device), CODECS["coo"].rate(device)
        found = self.count * self.lanes * plain.per_decode + self.spec.all_raw * plain.decode
        if self.lanes > 1:
            each = float(self.spec.nonzeros(self.cuts[:-1], self.cuts[1:], 1).mean())
            found += merge_seconds(self.lanes * each)(device)
        if self.nodes > 1:
            packets = self._payload().packets / self.lanes
            found += self.nodes * self.count * coded.per_add + packets * coded.add
        return found


@dataclass(frozen=True, kw_only=True)
class Unions(Payload):
    """Bytes of unions of single nodes, and of sums of all `repeat` nodes, which are one packet."""

    sums: Callable[[], Floats]  # B of each sum: (blocks / repeat,)

    @cached_property
    def _sums(self) -> Floats:
        return self.sums()

    def wire(self, first: Ints, stop: Ints, merged: int | Ints) -> Floats:
        alone = super().wire(first, stop, merged)
        return np.where(stop - first == self.repeat, self._sums[first // self.repeat], alone)


METHODS.add("node-union")(NodeUnion())
