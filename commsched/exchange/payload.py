"""The expected size of an exchange's packets, per run of blocks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from commsched.arrays import Floats, Ints
from commsched.coding.codec import Codec
from commsched.machine.device import FREE
from commsched.machine.model import CodecRate, Device
from commsched.net.bucket import BucketSpec
from commsched.schedule.rounds import Goal, Schedule

# B moved per B of values where a hop keeps its losses: copy 2, subtract 3, look for NaN 1, add 3.
KEEP_TRAFFIC = 9.0
BLOCKS = 1024  # buckets of at most this many blocks price all blocks at once


def frame_bytes(count: Ints) -> Ints:
    """Return the B of the table of lengths before `count` packets in a message; 0 for one."""
    return np.where(count > 1, 8 * count, 0)


@dataclass(frozen=True, kw_only=True)
class Payload:
    """Bytes and coding work of a message that carries blocks [first, stop).

    For reducing goals the codec runs at every hop on runs of the bucket cut at `cuts`. For an
    all-gather or all-to-all packets are made and read outside the exchange, and only forwarded in
    it; `sizes` gives their expected bytes, (blocks / repeat,): each for `repeat` blocks in a row.
    """

    codec: Codec
    cuts: Ints | None = None  # (blocks + 1,) element boundaries
    spec: BucketSpec | None = None
    sizes: Callable[[], Floats] | None = None
    repeat: int = 1

    @classmethod
    def reducing(cls, schedule: Schedule, codec: Codec, spec: BucketSpec) -> "Payload":
        """Return the payload of near-equal contiguous blocks, coded at every hop."""
        return cls(codec=codec, cuts=spec.cuts(schedule.blocks), spec=spec)

    @classmethod
    def gathered(cls, schedule: Schedule, codec: Codec, spec: BucketSpec) -> "Payload":
        """Return the payload of each rank's packet of the whole bucket."""
        assert schedule.goal in (Goal.ALL_GATHER, Goal.ALL_TO_ALL)

        def sizes() -> Floats:
            zero, numel = np.zeros(1, np.int64), np.array([spec.numel])
            return np.broadcast_to(codec.nbytes(spec, zero, numel, 1), (schedule.blocks,))

        return cls(codec=codec, sizes=sizes)

    @cached_property
    def _sizes(self) -> Floats:
        """Return the bytes of each block, or of each `repeat` blocks, if no round changes them."""
        if self.cuts is None:
            assert self.sizes is not None
            return self.sizes()
        assert self.spec is not None
        assert self.codec.fixed
        return self.codec.nbytes(self.spec, self.cuts[:-1], self.cuts[1:], 1)

    @cached_property
    def _ends(self) -> Floats:
        """Return the running total of the sizes."""
        return np.concatenate([[0.0], np.cumsum(self._sizes * self.repeat)])

    @property
    def ends(self) -> Floats | None:
        """Return the bytes before each block, and of all blocks; None if rounds differ."""
        return self._ends if self.known else None

    def _before(self, block: Ints) -> Floats:
        """Return the bytes of all blocks before this one: (m,)."""
        if self.repeat == 1:
            return self._ends[block]
        whole, part = block // self.repeat, block % self.repeat
        found: Floats = self._ends[whole] + part * np.append(self._sizes, 0.0)[whole]
        return found

    @cached_property
    def uneven(self) -> bool:
        """Tell whether packets that are only forwarded differ in size."""
        return self.cuts is None and len(np.unique(self._sizes)) > 1

    @property
    def grows(self) -> bool:
        """Tell whether packets grow where ranks are summed."""
        return self.cuts is not None and not self.codec.fixed

    @property
    def known(self) -> bool:
        """Tell whether receivers know the bytes of each message before it comes."""
        return self.cuts is not None and self.codec.fixed

    @property
    def packets(self) -> float:
        """Return the bytes of all packets together, if an exchange only forwards them."""
        return float(self._ends[-1])

    def wire(self, first: Ints, stop: Ints, merged: int | Ints) -> Floats:
        """Return the expected bytes handed to MPI for each run: (m,)."""
        if self.cuts is None:
            framed: Floats = self._before(stop) - self._before(first) + frame_bytes(stop - first)
            return framed
        if self.ends is not None:
            fixed: Floats = self.ends[stop] - self.ends[first]
            return fixed
        assert self.spec is not None
        if isinstance(merged, int) and len(self.cuts) <= BLOCKS and (stop - first == 1).all():
            return self._single(merged)[first]
        return self.codec.nbytes(self.spec, self.cuts[first], self.cuts[stop], merged)

    def _single(self, merged: int) -> Floats:
        """Return the B of every block that sums `merged` ranks; cached, as rounds ask by block."""
        if merged not in self._singles:
            assert self.cuts is not None
            assert self.spec is not None
            start, stop = self.cuts[:-1], self.cuts[1:]
            self._singles[merged] = self.codec.nbytes(self.spec, start, stop, merged)
        return self._singles[merged]

    @cached_property
    def _singles(self) -> dict[int, Floats]:
        return {}

    def raw(self, first: Ints, stop: Ints) -> Floats:
        """Return the bytes of float32 values that the codec reads or writes at a hop: (m,)."""
        if self.cuts is None:
            return np.zeros(len(first))
        if self.spec is not None and self.codec.lists:
            return self.spec.raw(self.cuts[first], self.cuts[stop])
        return np.asarray(4.0 * (self.cuts[stop] - self.cuts[first]), np.float64)

    def rate(self, device: Device) -> CodecRate:
        """Return the codec's speed inside the exchange."""
        if self.cuts is None:
            return FREE
        rate = self.codec.rate(device).at(self.density).again()
        if not self.codec.feedback:
            return rate
        return replace(rate, encode=rate.encode + KEEP_TRAFFIC / device.bandwidth)

    @property
    def density(self) -> float:
        """Return the share of the values of one rank that are not zero."""
        return 1.0 if self.spec is None else self.spec.density


class Payloads:
    """Payloads of one schedule side by side, coded by one codec: rows are (payloads, messages)."""

    def __init__(self, each: Sequence[Payload]) -> None:
        self._each = each
        self.rate, self.grows = each[0].rate, any(one.grows for one in each)
        ends = [one.ends for one in each]
        self._ends = None if any(one is None for one in ends) else np.array(ends)

    def wire(self, first: Ints, stop: Ints, merged: int | Ints) -> Floats:
        """Return the expected bytes handed to MPI for each run: (payloads, m)."""
        if self._ends is not None:
            found: Floats = self._ends[:, stop] - self._ends[:, first]
            return found
        return np.stack([one.wire(first, stop, merged) for one in self._each])

    def raw(self, first: Ints, stop: Ints) -> Floats:
        """Return the B of float32 values that the codec reads or writes at a hop: (payloads, m)."""
        return np.stack([one.raw(first, stop) for one in self._each])
