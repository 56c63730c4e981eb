"""The times until which streams are busy, for a role's ranks or for a planner's candidates."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from commsched.arrays import Bools, Floats

Times = TypeVar("Times", Floats, float)  # s of many columns, or of one


def latest(one: Times, other: Times) -> Times:
    """Return the later of two times; numbers take a fifth of the time of arrays of one element."""
    return max(one, other) if isinstance(one, float) else np.maximum(one, other)


def where(so: Bools | bool, one: Times, other: Times | float) -> Times | Any:
    """Return one time where something is so, and the other elsewhere."""
    if isinstance(so, bool):
        return one if so else other
    return np.where(so, one, other)


class Clocks:
    """The streams of many columns (ranks or candidates); shape None: of one, in numbers.

        begin = max(stream is free, inputs are ready)

    overlap: the share of an exchange that progresses while its rank computes.
    """

    def __init__(self, shape: int | tuple[int, ...] | None, overlap: float = 1.0) -> None:
        # s, by stream
        self.free: dict[str, Any] = defaultdict(lambda: 0.0 if shape is None else np.zeros(shape))
        self._overlap = overlap

    def begin(self, stream: str, ready: Times) -> Times:
        """Return when a stream can begin what is ready."""
        free: Times = self.free[stream]
        return latest(free, ready)

    def exchange(
        self, stream: str, start: Times, end: Times, within: float = 0.0, late: Times | float = 0.0
    ) -> Times:
        """Place an exchange that would end at `end` if its rank did nothing else; return its end.

        within [s]: a rank's own work in it. late [s]: how much longer it lasts if its rank computes
        all the while.
        """
        end = under_compute(start, end, self.free["compute"], self._overlap, late)
        if within:
            end = end + within
        self.free[stream] = end
        return end

    def phase(
        self,
        ready: Times,
        seconds: Sequence[Times],
        heard: Times | float = 0.0,
        all_heard: Times | float = 0.0,
        late: Times | float = 0.0,
    ) -> Times:
        """Place the encode, exchange and decode of one phase; return when it is decoded.

        seconds: of the three on idle cores. heard, all_heard [s]: until the decode stream and the
        exchange streams of all ranks take up what is ready. late [s]: see `exchange`.
        """
        encode, exchange, decode = seconds
        encoded = self.free["encode"] = self.begin("encode", ready) + encode
        start = self.begin("exchange", encoded + all_heard)
        exchanged = self.exchange("exchange", start, start + exchange, late=late)
        decoded = self.free["decode"] = self.begin("decode", exchanged + heard) + decode
        return decoded


def under_compute(
    start: Times, end: Times, busy: Times | float, overlap: float, late: Times | float = 0.0
) -> Times:
    """Return when an exchange ends that is slower while its rank computes: (ranks,) s.

    start, end: as if nothing computed; busy: until when the rank computes, from before `start` on.
        end' = start + T / f                 if T <= f c,  c = busy - start, T = end - start
        end' = busy + T - f c                otherwise
    f = `overlap` T / (T + `late`), in [0, 1], the rate beside compute; f = 0: the exchange waits
    for its end.
    """
    waking = late > 0.0 if isinstance(late, float) else late.any()
    if overlap == 1.0 and not waking:
        return end
    covered, alone = np.maximum(busy - start, 0.0), end - start
    rate: Times | float = overlap
    if waking:
        alone = np.maximum(alone, 0.0)
        rate = overlap * alone / np.where(alone > 0.0, alone + late, 1.0)
    within = alone + late <= overlap * covered
    slowed = start + (alone / overlap + late / overlap if overlap else alone)
    return np.where(within, slowed, end + (1.0 - rate) * covered)[()]  # type: ignore[return-value]
