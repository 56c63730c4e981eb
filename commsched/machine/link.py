"""Links and ports: seconds and bytes inside, microseconds and GB/s in a file."""

from dataclasses import dataclass
from math import inf, isfinite
from typing import Annotated

import numpy as np

from commsched.arrays import Floats
from commsched.errors import CommschedError
from commsched.machine.fabric import MICROSECONDS
from commsched.records import (
    NOT_NEGATIVE,
    NUMBER,
    QUANTITIES,
    WRITTEN,
    Check,
    Key,
    Rounded,
    Source,
    Stored,
    normalise,
    pairs,
    unit,
)
from commsched.units import significant

UNKNOWN = "not stated"  # source of numbers
SHORT = Check(
    "must be finite and at least 0, at most 3600 s", lambda seconds: 0.0 <= seconds <= 3600.0
)
PROPORTION = Check("must be in [0, 1]", lambda v: 0.0 <= v <= 1.0)
# s/B. The file has 10^9 B/s; null stands for bytes that cost nothing.
RATE = Stored(
    kind=float | None,
    read=lambda rate: 0.0 if rate is None else 1e-9 / rate,
    write=lambda per_byte: significant(1e-9 / per_byte) if per_byte else None,
    suffix="GBps",
    quantity=QUANTITIES["GBps"],
    check=Check("must be in [1e-09, 1e+09] or null", lambda rate: 1e-9 <= rate <= 1e9),
    rounds=True,
)
Delay = Annotated[float, unit("us", 1e-6, short=True), SHORT]  # s
PerByte = Annotated[float, RATE, NOT_NEGATIVE]
Points = Annotated[tuple[tuple[float, float], ...], pairs(NUMBER, MICROSECONDS)]  # (bytes, s)
# (ranks of a node that copy memory at once, B/s that each copies)
Shared = Annotated[tuple[tuple[float, float], ...], pairs(NUMBER, unit("GBps", 1e9))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A LogGP link class.

    L [s] = latency; o [s] = overhead, paid by sender and by receiver; G [s/B] = per_byte.
    Source: Alexandrov et al., "LogGP", SPAA 1995.
    """

    latency: Annotated[float, MICROSECONDS, SHORT]
    overhead: Annotated[float, MICROSECONDS, SHORT]
    per_byte: Annotated[PerByte, Key("bandwidth_GBps")]
    # Measured (bytes, seconds on the wire), ascending, if one slope does not fit; empty: n G.
    points: Points = ()
    busy: Annotated[Rounded, PROPORTION] = 0.0  # cores that an exchange keeps busy on each rank
    # Cores that interrupts for an exchange's packets take from a rank's other work.
    interrupts: Annotated[Rounded, PROPORTION] = 0.0
    source: Source = UNKNOWN

    def __post_init__(self) -> None:
        normalise(self)
        check_points("points", self.points)

    def wire(self, nbytes: float | Floats) -> float | Floats:
        """Return the s that `nbytes` occupy a port: n G, or the measured curve, then end + n G."""
        if not self.points:
            return nbytes * self.per_byte
        x, y = np.array(self.points).T
        beyond = np.maximum(np.asarray(nbytes) - x[-1], 0.0) * self.per_byte
        seconds: Floats = np.interp(nbytes, x, y) + beyond
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """Network ports of a node: the ranks of a node share them evenly."""

    per_node: Annotated[int, Check("must be from 1 to 65536", lambda n: 1 <= n <= 2**16)]
    per_byte: Annotated[PerByte, Key("bandwidth_GBps")]  # s/B of one port in each direction
    # B of one message that leave before another rank's turn
    turn: Annotated[float, unit("B", 1.0), NOT_NEGATIVE, WRITTEN] = 0.0
    source: Source = UNKNOWN

    def __post_init__(self) -> None:
        normalise(self, "nic: ")

    def of(self, own: Link) -> float:
        """Return s/B of the ports of a node with an overriding link, which its ranks share."""
        return max(self.per_byte, own.per_byte)


def check_points(name: str, points: tuple[tuple[float, float], ...]) -> None:
    """Check points (bytes, seconds): bytes must ascend, seconds must not descend."""
    last, before = -1.0, 0.0
    for nbytes, seconds in points:
        if not (nbytes >= 0 and nbytes > last and isfinite(nbytes) and before <= seconds < inf):
            raise CommschedError(
                f"{name}: point ({nbytes:g} B, {seconds:g} s) is out of order: bytes must ascend"
                " from 0 on, seconds must not descend"
            )
        last, before = nbytes, seconds


def check_shared(points: tuple[tuple[float, float], ...]) -> None:
    """Check points (ranks, B/s): ranks must ascend from 1, rates must not ascend."""
    before = (0.0, inf)
    for ranks, rate in points:
        if not (before[0] < ranks < inf and 0 < rate <= before[1] and isfinite(rate)):
            raise CommschedError(
                f"shared_memory: point ({ranks:g} ranks, {rate / 1e9:g} GB/s) is out of order:"
                " ranks must ascend from 1 on, and the rate of each must not ascend"
            )
        before = ranks, rate
    if points and points[0][0] != 1:
        raise CommschedError(f"shared_memory begins with 1 rank, got {points[0][0]:g}")
