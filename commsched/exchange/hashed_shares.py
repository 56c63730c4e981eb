"""Shares by hash: every rank owns an equal number of non-zeros, whatever their positions."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.coding import bitmaps
from commsched.coding.codec import State
from commsched.coding.coordinates import open_coordinates, pack_coordinates
from commsched.coding.packet import HEADER, tag_of
from commsched.coding.registry import CODECS
from commsched.exchange.lists import left, merge_seconds, taken
from commsched.exchange.method import Ends, Phase
from commsched.exchange.payload import Payload
from commsched.kernels.bits import packed_bytes
from commsched.kernels.hashing import Groups, Sets, grouped, grouped_in_memory, index_sets
from commsched.kernels.merge import Listed, listed, merged
from commsched.kernels.modules import module_of
from commsched.machine.model import Device
from commsched.net.bucket import BucketSpec
from commsched.schedule.rounds import Schedule

# Without a measured device: B of memory traffic that take as long as the hash, sort by owner and
# look-up of a non-zero. Measured: 28 ns with copies at 19 GB/s (4 M elements, 5 %, 4 owners).
HASH_TRAFFIC = 512.0
IN_MEMORY_TIMES = 4.7  # factor of hierarchical memories; measured: 108 ns instead of 23 ns


class Dealing(NamedTuple):
    """A way to deal non-zeros to their owners; every way gives equal parts."""

    group: Callable[[Array, int], Groups]  # (n,) ascending indices, number of owners
    times: float  # duration as a multiple of the fastest way's

    def seconds(self, device: Device) -> float:
        """Return the seconds to deal one non-zero."""
        return self.times * (device.deal or HASH_TRAFFIC / device.bandwidth)

    def deal(self, listed: Listed, sets: Sets) -> tuple[Array, Array, list[int]]:
        """Return the places of non-zeros in their owners' parts, and values: by owner, (n,) each.

        Also returns the ends of the owners' shares, (owners + 1,).
        """
        order, ends = self.group(listed.index, len(sets.ends) - 1)
        place = sets.place.take(listed.index).take(order)  # looked up in ascending order
        return place, listed.values.take(order), ends


COUNTED = Dealing(grouped, 1.0)
IN_MEMORY = Dealing(grouped_in_memory, IN_MEMORY_TIMES)


@dataclass(frozen=True, kw_only=True)
class HashedShares:
    """Push and pull of one or more runs of a bucket, each among `parts` owners.

    runs: (runs + 1,) element boundaries; run_of, place_of: (ranks,) each rank's run and its number
    among the owners; merged: ranks already summed in the input. bits: the pull may use a hash
    bitmap, one bit per element of the owner's part, if the bitmap is smaller.
    """

    spec: BucketSpec
    runs: Ints
    run_of: Callable[[int], int]
    place_of: Callable[[int], int]
    parts: int
    merged: int
    bits: bool
    dealing: Dealing = COUNTED

    def push(self, schedule: Schedule, ends: Callable[[int], Ends] | None) -> Phase:
        """Build an all-to-all: every rank sends owners their parts, which they sum into "share"."""

        def take(state: State) -> list[Array]:
            found = taken(state) if "list" in state else listed(self._run(state))
            sets = self._sets(state)
            place, kept, ends = self.dealing.deal(found, sets)
            return [
                pack_coordinates(place[a:b], kept[a:b], first)
                for (a, b), first in zip(pairwise(ends), sets.ends[:-1], strict=True)
            ]

        def give(state: State, packets: list[Array]) -> None:
            owned = self._sets(state).part(self.place_of(int(state["rank"])))
            lists = [Listed(*open_coordinates(packet, len(owned))) for packet in packets]
            state["share"] = merged(lists, len(owned)), len(owned)

        def take_seconds(device: Device) -> float:
            dealt = float(self._filled(self.merged).mean()) * self.parts
            rate = CODECS["coo"].rate(device).at(self.spec.density)
            return rate.fixed + self._raw * rate.encode + dealt * self.dealing.seconds(device)

        def give_seconds(device: Device) -> float:
            opening = self.parts * CODECS["coo"].rate(device).per_decode
            received = self.parts * float(self._filled(self.merged).mean())
            return opening + merge_seconds(received)(device)

        return Phase(
            name="push",
            schedule=schedule,
            payload=Payload(codec=CODECS["coo"], sizes=self._pushed, repeat=self.parts**2),
            take=take,
            give=give,
            take_seconds=take_seconds,
            give_seconds=give_seconds,
            ends=ends,
            sets=frozenset({(int(np.diff(self.runs).max()), self.parts)}),
        )

    def pull(self, schedule: Schedule, ends: Callable[[int], Ends] | None) -> Phase:
        """Build an all-gather: every owner sends its sums to all ranks for their gradients."""

        def take(state: State) -> Array:
            share, numel = state.pop("share")
            if self.bits and packed_bytes(numel) < 4 * len(share.index):
                return bitmaps.pack_bitmap(share.index, share.values, numel)
            return pack_coordinates(*share)

        def give(state: State, packets: list[Array]) -> None:
            sets, lists = self._sets(state), []
            for owner, packet in enumerate(packets):
                owned = sets.part(owner)
                index, sums = opened(packet, len(owned))
                lists.append(Listed(owned.take(index), sums))
            if "list" in state:
                left(state, merged(lists, self.spec.numel))
                return
            values = self._run(state)
            values.fill(0)
            for index, sums in lists:
                values[index] = sums
            state["result"] = state["gradient"]

        def take_seconds(device: Device) -> float:
            lists = 2 * float(self._pulled().mean())  # read and written
            flags = 2 * self._raw / 4.0 / self.parts if self.bits else 0.0  # a byte each
            return CODECS["coo"].rate(device).fixed + (lists + flags) / device.bandwidth

        def give_seconds(device: Device) -> float:
            lists = CODECS["coo"].rate(device).again()
            filled = float(self._filled(self.merged * self.parts).mean())
            placed = self.parts * (lists.fixed + 8.0 * filled * lists.add)
            whole = CODECS["bitmap"].rate(device).decode if self.bits else 1 / device.bandwidth
            return placed + self._raw * whole

        return Phase(
            name="pull",
            schedule=schedule,
            payload=Payload(codec=CODECS["coo"], sizes=self._pulled, repeat=self.parts),
            take=take,
            give=give,
            take_seconds=take_seconds,
            give_seconds=give_seconds,
            ends=ends,
            sets=frozenset({(int(np.diff(self.runs).max()), self.parts)}),
        )

    @property
    def _raw(self) -> float:
        """Return the mean bytes of the values of a run."""
        return self.spec.all_raw / (len(self.runs) - 1)

    def _filled(self, merged: int) -> Floats:
        """Return the expected non-zeros of one owner's part, of each run."""
        return self.spec.nonzeros(self.runs[:-1], self.runs[1:], merged) / self.parts

    def _pushed(self) -> Floats:
        """Return the expected bytes that one rank sends one owner, of each run."""
        return HEADER + 8.0 * self._filled(self.merged)

    def _pulled(self) -> Floats:
        """Return the expected bytes of one owner's sum, of each run."""
        filled = self._filled(self.merged * self.parts)
        if not self.bits:
            return HEADER + 8.0 * filled
        # The length of a part is random: rounding up to bytes adds 3.5 bits on average.
        bits = np.diff(self.runs) / self.parts + 3.5
        return HEADER + np.minimum(8.0 * filled, bits / 8 + 4.0 * filled)

    def _run(self, state: State) -> Array:
        number = self.run_of(int(state["rank"]))
        return state["gradient"][self.runs[number] : self.runs[number + 1]]

    def _sets(self, state: State) -> Sets:
        """Return the owner of each element of this rank's run."""
        values = self._run(state)
        return index_sets(module_of(values), len(values), self.parts)


def opened(packet: Array, numel: int) -> tuple[Array, Array]:
    """Read indices and values of a sum from a bitmap or a coordinate list."""
    return (
        bitmaps.open_bitmap(packet, numel)
        if tag_of(packet) == bitmaps.TAG
        else open_coordinates(packet, numel)
    )
