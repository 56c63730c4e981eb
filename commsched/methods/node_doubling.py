"""Sums of nodes that meet on the way: recursive doubling of coded unions, piece after piece."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from commsched.codecs import Array, State, elias
from commsched.kernels.merge import Listed, merged
from commsched.methods.base import Phase, Pieces, copy_seconds
from commsched.methods.node_lists import (
    Left,
    coded,
    coded_bytes,
    compact,
    compact_bytes,
    ends,
    opened,
    taken,
)
from commsched.methods.node_routes import doubled
from commsched.methods.payload import Payload
from commsched.plan.bucket import BucketSpec

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Levels(elias.Elias):
    """Lists as they are written inside nodes, those of the fewest bytes between them."""

    def __init__(self, inside: tuple[int, ...]) -> None:
        self._inside = inside  # how many ranks what is sent inside nodes sums

    def nbytes(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        far = coded_bytes(spec, start, stop, merged)
        sums = np.asarray(merged)
        near = np.logical_or.reduce([sums == count for count in (0, *self._inside)])
        if not near.any():
            return far
        return np.where(near, compact_bytes(spec, start, stop, merged), far)


@dataclass(frozen=True, kw_only=True)
class Doubling:
    """One phase, in which every piece goes through all of its sums while others are on the wire.

    Lanes take pieces in turn, so that sums are complete from the first element on, and are left
    where the caller wants them while others are on the wire.
    State keys: "parts" (this rank's list by block, piece and lane; sums, where they are the own
    lane's), "added" (to each block), "left" (the sums so far).
    """

    spec: BucketSpec
    ranks: tuple[tuple[int, ...], ...]  # (nodes, lanes)
    count: int  # pieces of each lane

    @property
    def lanes(self) -> int:
        return len(self.ranks[0])

    @cached_property
    def cuts(self) -> Ints:
        """Where each block (piece, lane) begins, and the end: (pieces * lanes + 1,)."""
        return self.spec.even_cuts(self.count * self.lanes, self.lanes)

    @cached_property
    def lane(self) -> dict[int, int]:
        return {rank: lane for node in self.ranks for lane, rank in enumerate(node)}

    def phase(self) -> Phase:
        """The whole exchange."""
        lanes, numel = self.lanes, np.diff(self.cuts).tolist()
        last = lanes - 1 + len(self.ranks).bit_length() - 1  # additions to each own block

        def take(state: State) -> None:
            whole = taken(state)
            bounds = ends(whole.index, self.cuts)
            state["parts"] = [
                Listed(whole.index[a:b] - start, whole.values[a:b])
                for a, b, start in zip(bounds, bounds[1:], self.cuts.tolist(), strict=False)
            ]
            state["added"] = [0] * len(numel)
            state["left"] = Left(state, self.cuts)

        def own(state: State, block: int) -> bool:
            return block % lanes == self.lane[state["rank"]]

        def make(state: State, block: int, stop: int) -> Array:
            part = state["parts"][block]
            if not own(state, block) or (state["added"][block] == last and lanes > 1):
                return compact(part, numel[block])
            return coded(part, numel[block])

        def read(state: State, block: int, stop: int, packet: Array) -> None:
            came = opened(packet, numel[block])
            if own(state, block):
                came = merged([state["parts"][block], came], numel[block])
                state["parts"][block] = came
                state["added"][block] += 1
                if state["added"][block] < last:
                    return
            state["left"].put(block, came)

        def give(state: State, nothing: Array) -> None:
            state.pop("left").end(state)
            del state["parts"], state["added"]

        near = (1, lanes * len(self.ranks)) if lanes > 1 else ()
        raw = 4.0 * self.spec.numel
        return Phase(
            name="",
            schedule=doubled(self.ranks, self.count),
            payload=Payload(codec=Levels(near), cuts=self.cuts, spec=self.spec),
            take=take,
            give=give,
            take_seconds=copy_seconds(raw),
            give_seconds=copy_seconds(raw),
            pieces=Pieces(make, read),
        )
