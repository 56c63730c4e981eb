"""Recursive doubling of the nodes' coded unions, piece after piece."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.codecs import elias
from commsched.coding.codec import State
from commsched.exchange.lists import taken
from commsched.exchange.method import Phase, Pieces, copy_seconds
from commsched.exchange.payload import Payload
from commsched.kernels.merge import Listed, SparseSum, ends
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
from commsched.methods.node_union.routes import doubled
from commsched.net.bucket import BucketSpec


class DoublingLevels(elias.Elias):
    """Lists of the quickest form inside nodes, and of the fewest bytes between nodes."""

    def __init__(self, inside: tuple[int, ...]) -> None:
        self._inside = inside  # ranks summed in packets inside nodes

    def nbytes(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        far = coded_bytes(spec, start, stop, merged)
        sums = np.asarray(merged)
        near = np.logical_or.reduce([sums == count for count in (0, *self._inside)])
        if not near.any():
            return far
        return np.where(near, compact_bytes(spec, start, stop, merged), far)


@dataclass(frozen=True, kw_only=True)
class Doubling:
    """One phase, in which each piece passes through all its sums while others are on the wire.

    Lanes take pieces in turn, so that sums are complete from the first element on, and are stored
    for the caller while others are on the wire.
    State keys: "parts" (this rank's list by block, piece and lane), "sums" (of the own lane's
    blocks), "added" (additions to each of these), "left" (the sums so far).
    """

    spec: BucketSpec
    ranks: tuple[tuple[int, ...], ...]  # (nodes, lanes)
    count: int  # pieces of each lane

    @property
    def lanes(self) -> int:
        return len(self.ranks[0])

    @cached_property
    def cuts(self) -> Ints:
        """Return where each block (piece, lane) begins, and the end: (pieces * lanes + 1,)."""
        units = graded(self.count)
        part = np.diff(units)[:, np.newaxis] * np.arange(self.lanes)
        place = np.append(units[:-1, np.newaxis] * self.lanes + part, -1)
        found: Ints = self.spec.even_cuts(int(units[-1]) * self.lanes, self.lanes)[place]
        return found

    @cached_property
    def expected(self) -> float:
        """Return the non-zeros of the sum of all ranks."""
        return float(self.spec.nonzeros(self.cuts[:1], self.cuts[-1:], self.size)[0])

    @property
    def size(self) -> int:
        """Return the number of ranks."""
        return self.lanes * len(self.ranks)

    @cached_property
    def lane(self) -> dict[int, int]:
        return {rank: lane for node in self.ranks for lane, rank in enumerate(node)}

    def phase(self) -> Phase:
        """Return the phase of the whole exchange."""
        lanes, numel = self.lanes, np.diff(self.cuts).tolist()
        last = lanes - 1 + len(self.ranks).bit_length() - 1  # additions to each own block

        def take(state: State) -> None:
            whole = taken(state)
            bounds = ends(whole.index, self.cuts)
            state["parts"] = [
                Listed(whole.index[a:b] - start, whole.values[a:b])
                for a, b, start in zip(bounds, bounds[1:], self.cuts.tolist(), strict=False)
            ]
            state["sums"] = {}
            state["added"] = [0] * len(numel)
            state["left"] = Left(state, self.cuts, self.expected)

        def own(state: State, block: int) -> bool:
            return block % lanes == self.lane[state["rank"]]

        def total(state: State, block: int) -> SparseSum:
            if block not in state["sums"]:
                state["sums"][block] = SparseSum(state["parts"][block], numel[block])
            found: SparseSum = state["sums"][block]
            return found

        def make(state: State, block: int, stop: int) -> Array:
            if not own(state, block):
                return compact(state["parts"][block], numel[block])
            if state["added"][block] == last and lanes > 1:
                return compact(state["sums"].pop(block).listed(), numel[block])
            return coded(total(state, block).listed(), numel[block])

        def read(state: State, block: int, stop: int, packet: Array) -> None:
            came = opened(packet, numel[block])
            if own(state, block):
                found = total(state, block)
                found.add(came)
                state["added"][block] += 1
                if state["added"][block] < last:
                    return
                came = found.listed()
            state["left"].put(block, came)

        def give(state: State, nothing: Array) -> None:
            state.pop("left").end(state)
            del state["parts"], state["sums"], state["added"]

        near = (1, lanes * len(self.ranks)) if lanes > 1 else ()
        raw = self.spec.all_raw
        return Phase(
            name="",
            schedule=doubled(self.ranks, self.count),
            payload=Payload(codec=DoublingLevels(near), cuts=self.cuts, spec=self.spec),
            take=take,
            give=give,
            take_seconds=copy_seconds(raw),
            give_seconds=copy_seconds(raw),
            pieces=Pieces(make, read, lambda block, stop: most_bytes(numel[block])),
        )
