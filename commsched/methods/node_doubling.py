"""Sums of nodes that meet on the way: recursive doubling of coded unions, piece after piece."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from commsched.codecs import Array, State, elias
from commsched.kernels.merge import Listed, merged
from commsched.methods.base import Phase, Pieces, copy_seconds
from commsched.methods.node_lists import (
    coded,
    coded_bytes,
    compact,
    compact_bytes,
    ends,
    leave,
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

    State keys: "parts" (this rank's list, by lane and piece; the own lane's become sums), "added"
    (to each piece of the own lane), "sums" (of other lanes).
    """

    spec: BucketSpec
    ranks: tuple[tuple[int, ...], ...]  # (nodes, lanes)
    cuts: Ints  # (lanes, pieces + 1) where each piece of each lane's share begins

    @property
    def lanes(self) -> int:
        return len(self.ranks[0])

    @property
    def count(self) -> int:
        return int(self.cuts.shape[1]) - 1

    @cached_property
    def flat(self) -> Ints:
        """Where each block (lane, piece) begins, and the end: (lanes * pieces + 1,)."""
        return np.append(self.cuts[:, :-1].ravel(), self.spec.numel)

    @cached_property
    def lane(self) -> dict[int, int]:
        return {rank: lane for node in self.ranks for lane, rank in enumerate(node)}

    def phase(self) -> Phase:
        """The whole exchange."""
        lanes, count, numel = self.lanes, self.count, np.diff(self.flat).tolist()
        last = lanes - 1 + len(self.ranks).bit_length() - 1  # additions to each piece

        def take(state: State) -> None:
            whole = taken(state)
            bounds = ends(whole.index, self.flat)
            state["parts"] = [
                Listed(whole.index[a:b] - start, whole.values[a:b])
                for a, b, start in zip(bounds, bounds[1:], self.flat.tolist(), strict=False)
            ]
            state["added"] = [0] * (lanes * count)

        def make(state: State, block: int, stop: int) -> Array:
            own = state["parts"][block]
            foreign = block // count != self.lane[state["rank"]]
            if foreign or (state["added"][block] == last and lanes > 1):
                return compact(own, numel[block])
            return coded(own, numel[block])

        def read(state: State, block: int, stop: int, packet: Array) -> None:
            came = opened(packet, numel[block])
            if block // count != self.lane[state["rank"]]:
                state["parts"][block] = came
                return
            state["parts"][block] = merged([state["parts"][block], came], numel[block])
            state["added"][block] += 1

        def give(state: State, nothing: Array) -> None:
            leave(state, state.pop("parts"), self.flat[:-1].tolist())
            del state["added"]

        near = (1, lanes * len(self.ranks)) if lanes > 1 else ()
        raw = 4.0 * self.spec.numel
        return Phase(
            name="",
            schedule=doubled(self.ranks, count),
            payload=Payload(codec=Levels(near), cuts=self.flat, spec=self.spec),
            take=take,
            give=give,
            take_seconds=copy_seconds(raw),
            give_seconds=copy_seconds(raw),
            pieces=Pieces(make, read),
        )
