"""The times until which streams are busy, for a role's ranks or for a planner's candidates."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from commsched.arrays import Bools, Times
from commsched.machine.model import Machine
from commsched.program.parts import CodingTime

RESTED = 5e-3  # s, a long sleep, as between the exchanges of a calibration
LONG_AGO = 1e9  # s
SOON = 5e-4  # s, a short sleep, after which a calibration measures hand-overs


def latest(one: Times, other: Times | float) -> Times:
    """Return the later of two times; numbers take a fifth of the time of arrays of one element."""
    return max(one, other) if isinstance(one, float) else np.maximum(one, other)


def where(so: Bools | bool, one: Times, other: Times | float) -> Times | Any:
    """Return `one` where the condition `so` holds, and `other` elsewhere."""
    if isinstance(so, bool):
        return one if so else other
    return np.where(so, one, other)


def asleep(slept: Times, cooling: float) -> Any:
    """Return the share of the full wake-up cost after a sleep of t s.

        t (r + c) / (r (t + c)), 1 from r = RESTED s on; c = `cooling`

    The longer a thread sleeps, the less of its data is in the caches.
    """
    rest: Any = min(slept, RESTED) if isinstance(slept, float) else np.minimum(slept, RESTED)
    if not cooling:
        return where(rest > 0.0, 1.0, 0.0)
    return rest * (RESTED + cooling) / (RESTED * (rest + cooling))


class Waking(NamedTuple):
    """The extra time of an operation whose thread was asleep before it.

    A thread sleeps if no operation is ready when its own work is done.
    """

    share: float  # share of these seconds that an awake thread takes
    gather: float  # s, to gather a bucket of any size
    startup: float  # s, of an exchange
    cold: float = 0.0  # s, of any coding
    cooling: float = 0.0  # s, see `asleep`
    handover: float = 1.0  # the share of a hand-over that a thread takes after SOON or less

    @classmethod
    def of(cls, machine: Machine, coding: CodingTime) -> "Waking | None":
        """Return the wake-up costs of a machine; None: there are none."""
        if machine.awake == 1.0 and not machine.dispatch:
            return None
        gather, cold = machine.device.fixed_gather * coding.alone, coding.cold * coding.alone
        shares = machine.cooling, machine.handover_awake
        return cls(machine.awake, gather, machine.startup, cold, *shares)

    def asleep(self, slept: Times) -> Any:
        """Return `asleep` of a sleep of some s."""
        return asleep(slept, self.cooling)

    def taken(self, asleep: Any) -> Any:
        """Return the share of these seconds that a thread takes after its sleep."""
        return self.share + (1.0 - self.share) * asleep

    def handed_over(self, asleep: Any) -> Any:
        """Return the share of a hand-over that a thread takes after its sleep.

        h + (1 - h) max(0, (a - s) / (1 - s)),  a = `asleep`, s = that of SOON, h = `handover`
        """
        soon = self.asleep(SOON)
        grown = (asleep - soon) / (1.0 - soon) if soon < 1.0 else asleep
        return self.handover + (1.0 - self.handover) * np.maximum(grown, 0.0)

    def saved(self, seconds: Times, waking: float, asleep: Any) -> Any:
        """Return the s, up to `waking`, that an operation saves because its thread slept less."""
        return (1.0 - self.taken(asleep)) * np.minimum(seconds, waking)


class Clocks:
    """The streams of many columns (ranks or candidates); shape None: of one, in numbers.

        begin = max(stream is free, inputs are ready)

    overlap: the share of an exchange that progresses while its rank computes. waking: see `Waking`.
    beside: the factor by which a hand-over takes longer if the rank computes.
    """

    def __init__(
        self,
        shape: int | tuple[int, ...] | None,
        overlap: float = 1.0,
        waking: Waking | None = None,
        beside: float = 1.0,
    ) -> None:
        idle = -np.inf  # before its first operation a stream is asleep
        # s, by stream
        self.free: dict[str, Any] = defaultdict(
            lambda: idle if shape is None else np.full(shape, idle)
        )
        self._overlap = overlap
        self._waking = waking
        self._beside = beside

    def begin(self, stream: str, ready: Times) -> Times:
        """Return when a stream can begin an operation that is ready at `ready`."""
        free: Times = self.free[stream]
        return latest(free, ready)

    def taken_up(self, ready: Times, heard: Times | float) -> Times:
        """Return when a ready operation is taken up: after `heard` s if no compute runs."""
        if self._beside == 1.0:
            return ready + heard
        return ready + heard * where(ready < self.free["compute"], self._beside, 1.0)

    def asleep(self, stream: str, ready: Times) -> Any:
        """Return `asleep` of a stream's thread when an operation is ready."""
        assert self._waking is not None
        free = self.free[stream]
        sleeps = ready > free
        slept = where(sleeps, ready, 0.0) - where(sleeps, free, 0.0)
        return self._waking.asleep(slept)

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

    def start(self, stream: str, ready: Times, seconds: Times, late: Times | float = 0.0) -> Times:
        """Place an exchange of some seconds that is ready on all ranks; return its end."""
        if self._waking:
            asleep = self.asleep(stream, ready)
            seconds = seconds - self._waking.saved(seconds, self._waking.startup, asleep)
        start = self.begin(stream, ready)
        return self.exchange(stream, start, start + seconds, late=late)

    def phase(
        self,
        ready: Times,
        seconds: Sequence[Times],
        heard: Times | float = 0.0,
        all_heard: Times | float = 0.0,
        late: Times | float = 0.0,
        gathers: bool = False,
    ) -> Times:
        """Place the encode, exchange and decode of one phase; return when it is decoded.

        seconds: of the three on idle cores. heard, all_heard [s]: until the decode stream and the
        exchange streams of all ranks take up what is ready. late [s]: see `exchange`. gathers: the
        bucket is gathered before it is encoded.
        """
        encode, exchange, decode = seconds
        encoded = self._coded("encode", ready, encode, gathers)
        exchanged = self.start("exchange", self.taken_up(encoded, all_heard), exchange, late)
        decoded: Times = self._coded("decode", self.taken_up(exchanged, heard), decode)
        return decoded

    def _coded(self, stream: str, ready: Times, seconds: Times, gathers: bool = False) -> Any:
        """Place an encode or decode; return its end."""
        if self._waking and (gathers or self._waking.cold):
            waking = self._waking.cold + gathers * self._waking.gather
            seconds = seconds - self._waking.saved(seconds, waking, self.asleep(stream, ready))
        end = self.free[stream] = self.begin(stream, ready) + seconds
        return end


def under_compute(
    start: Times, end: Times, busy: Times | float, overlap: float, late: Times | float = 0.0
) -> Times:
    """Return the end of an exchange that is slower while its rank computes: (ranks,) s.

    start, end: without compute; busy: the end of the rank's compute, which began before `start`.
        end' = start + T / f                 if T <= f c,  c = busy - start, T = end - start
        end' = busy + T - f c                otherwise
    f = `overlap` T / (T + `late`), in [0, 1], the rate beside compute; f = 0: the exchange waits
    for its end.
    """
    waking = late > 0.0 if isinstance(late, float) else late.any()
    if overlap == 1.0 and not waking:
        return end
    start = latest(start, -LONG_AGO)  # -inf: before any operation
    covered, alone = np.maximum(busy - start, 0.0), end - start
    rate: Times | float = overlap
    if waking:
        alone = np.maximum(alone, 0.0)
        rate = overlap * alone / np.where(alone > 0.0, alone + late, 1.0)
    within = alone + late <= overlap * covered
    slowed = start + (alone / overlap + late / overlap if overlap else alone)
    return np.where(within, slowed, end + (1.0 - rate) * covered)[()]  # type: ignore[return-value]
