"""Seconds of messages on links and ports."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from commsched.arrays import Floats, Ints
from commsched.machine.model import Link

Each = Floats | float  # (m,) one number per move, or one for all of them; rows of several wires
Moves = Ints | slice | tuple[Any, ...]  # of one wire; of several: rows and moves


@dataclass(frozen=True)
class Wire:
    """Seconds of messages between two ranks, by LogGP on ports.

        port    = max(n G, n S) + o     the time on the send port, and on the receive port
        hop     = L + 2 o + n G         until a message has arrived
        drained = L + o + port          until it has arrived and the port is free

    L, o [s], G [s/B] of the slower end's link; S [s/B] = the share of a NIC; n [B].
    Source: Alexandrov et al., "LogGP", SPAA 1995.
    """

    away: Each  # L + o, s: from a message's start to its first byte at the other end
    overhead: Each  # o, s
    per_byte: Each  # G, s/B; 0 if a curve replaces it
    curves: tuple[tuple[Moves, Link], ...] = ()  # moves whose link has a measured curve
    shared: Each = 0.0  # s/B, the share of a NIC; 0.0: not shared

    @classmethod
    def slowest(cls, links: Iterable[Link], shared: Each = 0.0) -> "Wire":
        """Return the seconds of messages that use the slowest of some links."""
        links = tuple(links)
        latency, overhead, per_byte = np.array([terms(link) for link in links]).max(0).tolist()
        curves = tuple((slice(None), link) for link in links if link.points)
        return cls(latency + overhead, overhead, per_byte, curves, shared)

    @classmethod
    def rows(cls, wires: Sequence["Wire"], rows: Sequence[int], moves: int) -> "Wire":
        """Return the seconds of a round on several machines: (rows of all, m).

        rows: of each wire.
        """
        columns = np.empty((4, sum(rows), moves))
        curves: list[tuple[Moves, Link]] = []
        for one, first, count in zip(wires, accumulate(rows, initial=0), rows, strict=False):
            here = slice(first, first + count)
            each = one.away, one.overhead, one.per_byte, one.shared
            for column, values in zip(columns, each, strict=True):
                column[here] = values
            curves += [((here, place), link) for place, link in one.curves]
        away, overhead, per_byte, shared = columns
        return cls(away, overhead, per_byte, tuple(curves), shared if shared.any() else 0.0)

    def alone(self, nbytes: Floats) -> Floats:
        """Return the seconds of each message on a port of its own, n G + o."""
        seconds = nbytes * self.per_byte
        for moves, link in self.curves:
            where = moves if isinstance(moves, tuple) else (..., moves)
            seconds[where] = np.maximum(seconds[where], link.wire(nbytes[where]))
        seconds += self.overhead
        return seconds

    def port(self, nbytes: Floats, alone: Floats | None = None) -> Floats:
        """Return the seconds that each message occupies a port: (m,), or any length given `speed`.

        alone: what `alone` returns, where it is known.
        """
        seconds = self.alone(nbytes) if alone is None else alone
        if self.crowded:
            seconds = np.maximum(seconds, nbytes * self.shared + self.overhead)
        return seconds

    def hop(self, nbytes: Floats) -> Floats:
        """Return the seconds until each message has arrived."""
        return self.alone(nbytes) + self.away

    def drained(self, nbytes: Floats) -> Floats:
        """Return the seconds until each message has arrived and its port is free."""
        return self.port(nbytes) + self.away

    @property
    def crowded(self) -> bool:
        """Tell whether messages share a NIC."""
        return not isinstance(self.shared, float) or self.shared > 0.0

    @cached_property
    def speed(self) -> tuple[float, float, float, tuple[int, ...]] | None:
        """Return the parameters of `port` if equal for all moves, for comparisons; else None."""
        if not all(isinstance(x, float) for x in (self.overhead, self.per_byte, self.shared)):
            return None
        if not all(isinstance(moves, slice) for moves, _ in self.curves):
            return None
        links = tuple(id(link) for _, link in self.curves)
        return float(self.overhead), float(self.per_byte), float(self.shared), links

    def least(self, nbytes: float) -> float:
        """Return the least seconds that a message of `nbytes` occupies a port."""
        return float(np.min(self.overhead) + nbytes * np.min(self.per_byte))

    def short(self) -> "Wire":
        """Return the same seconds, with one number in place of many equal ones."""
        moves = np.size(self.away)
        curves = tuple(
            (slice(None) if not isinstance(place, slice) and len(place) == moves else place, link)
            for place, link in self.curves
        )
        return Wire(
            one(self.away), one(self.overhead), one(self.per_byte), curves, one(self.shared)
        )

    def kinds(self, moves: int) -> list[tuple[int, "Wire"]]:
        """Return the different wires of a round and how many moves take each, slowest first."""
        columns = (self.away, self.overhead, self.per_byte, self.shared)
        rows = [np.broadcast_to(np.asarray(each, float), moves) for each in columns]
        for place, _ in self.curves:
            rows.append(np.zeros(moves))
            rows[-1][place] = 1.0
        kind = np.zeros(moves, np.int64)
        for row in rows:
            if (row != row[0]).any():
                different, number = np.unique(row, return_inverse=True)
                kind = kind * len(different) + number
        _, first, counts = np.unique(kind, return_index=True, return_counts=True)
        found = []
        for place, count in zip(first.tolist(), counts.tolist(), strict=True):
            away, overhead, per_byte, shared, *bent = (float(row[place]) for row in rows)
            own = zip(self.curves, bent, strict=True)
            curves = tuple((slice(None), link) for (_, link), here in own if here)
            found.append((count, Wire(away, overhead, per_byte, curves, shared)))
        return sorted(found, key=lambda kind: -float(kind[1].away))

    def most(self) -> "Wire":
        """Return a wire that is in every respect as slow as the slowest of these."""
        columns = (self.away, self.overhead, self.per_byte, self.shared)
        away, overhead, per_byte, shared = (float(np.max(each)) for each in columns)
        curves = tuple((slice(None), link) for _, link in self.curves)
        return Wire(away, overhead, per_byte, curves, shared)


def terms(link: Link) -> tuple[float, float, float]:
    """Return L, o and G; G is 0 if a measured curve replaces it."""
    return link.latency, link.overhead, 0.0 if link.points else link.per_byte


def one(values: Each) -> Each:
    """Return one number in place of many equal ones."""
    first = float(np.ravel(values)[0]) if np.size(values) else 0.0
    return first if np.all(values == first) else values
