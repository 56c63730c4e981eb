"""Costs of a round's messages: bytes, seconds on a port, seconds to code and to merge."""

from typing import NamedTuple

import numpy as np

from commsched.arrays import Floats, Ints
from commsched.cost.pattern import Pattern
from commsched.exchange.payload import Payload, Payloads
from commsched.machine.model import Machine
from commsched.schedule.rounds import Round, RoundRows, Schedule


class MessageWork(NamedTuple):
    """The messages of a round, in the order of senders or of receivers: (m,) or (payloads, m)."""

    wire: Floats  # B, of senders
    busy: Floats  # s on a port, of senders
    busy_back: Floats  # s on a port, of receivers
    alone_back: Floats | None  # s on a port of its own, of receivers; None: as `busy_back`
    code: Floats | None  # s to encode, of senders; None: nothing to do
    merge: Floats | None  # s to add or decode, of receivers
    busy_least: float  # a lower bound of `busy`
    merge_most: float


class _Table(NamedTuple):
    """The work of every row of a table of runs."""

    rows: RoundRows  # keeps the objects alive, because their ids are keys
    wire: Floats
    busy: Floats | None  # None: depends on the link of each move
    alone: Floats | None  # None: as `busy`
    code: Floats | None
    merge: Floats | None
    busy_least: float
    merge_most: float


class Works:
    """Works of rounds, derived once per table of runs if rounds have one.

    Rates of codecs hold for all ranks at work. If m of p ranks code, they take max(m / p, a) of
    that time, where a is the machine's `alone`.
    """

    def __init__(self, payload: Payload | Payloads, machine: Machine, tables: bool = True) -> None:
        self._payload = payload
        self._tables = tables  # whether to look work up in tables: it holds until the next round
        self._rate = payload.rate(machine.device)
        self._alone, self._ranks = machine.alone, machine.size
        # Sums of sparse packets grow from round to round: a table would serve one round.
        self._grows = payload.grows
        self._key: tuple[object, ...] = ()
        self._table: _Table | None = None
        self._around: dict[str, Floats] = {}

    def _share(self, rnd: Round) -> float:
        return max(len(rnd.src) / self._ranks, self._alone)

    def processor_seconds(self, rnd: Round) -> float:
        """Return the processor time that all ranks of a round code for, s."""
        wire = self._payload.wire(rnd.first, rnd.stop, rnd.merged)
        both = self._coding(rnd.first, rnd.stop, rnd.add, wire, self._alone)
        return float(sum(each.sum() for each in both if each is not None))

    def some(self, rnd: Round, pattern: Pattern) -> MessageWork:
        """Return the work of senders and receivers in the order of the moves."""
        wire = self._payload.wire(rnd.first, rnd.stop, rnd.merged)
        lasts = pattern.wire.alone(wire)
        busy = pattern.wire.port(wire, lasts)
        code, merge = self._coding(rnd.first, rnd.stop, rnd.add, wire, self._share(rnd))
        most = 0.0 if merge is None else float(merge.max())
        alone = lasts if pattern.wire.crowded else None
        return MessageWork(wire, busy, busy, alone, code, merge, float(busy.min()), most)

    def whole(self, rnd: Round, pattern: Pattern) -> MessageWork:
        """Return the work of a whole round: receiver i is the rank that sends move i."""
        shape, rows, size = pattern.shape, rnd.rows, len(rnd.src)
        tables = self._tables and shape.turn is not None
        table = self._tabled(rows, rnd, pattern) if tables and rows else None
        if table is None or rows is None or shape.turn is None:
            work = self.some(rnd, pattern)
            merge = None if work.merge is None else work.merge[..., shape.back]
            alone = None if work.alone_back is None else work.alone_back[..., shape.back]
            return work._replace(
                busy_back=work.busy[..., shape.back], alone_back=alone, merge=merge
            )
        start = rows.start % size
        back = (start - shape.turn) % size  # the row that ends where the row at `start` starts
        wire = table.wire[..., start : start + size]
        alone = None
        if table.busy is None:
            lasts = pattern.wire.alone(wire)
            busy = pattern.wire.port(wire, lasts)
            busy_back = self._turned(busy, shape.turn, "busy")
            if pattern.wire.crowded:
                alone = self._turned(lasts, shape.turn, "alone")
        else:
            busy = table.busy[..., start : start + size]
            busy_back = table.busy[..., back : back + size]
            if table.alone is not None:
                alone = table.alone[..., back : back + size]
        code = None if table.code is None else table.code[..., start : start + size]
        merge = None if table.merge is None else table.merge[..., back : back + size]
        return MessageWork(
            wire, busy, busy_back, alone, code, merge, table.busy_least, table.merge_most
        )

    def _turned(self, values: Floats, turn: int, what: str) -> Floats:
        """Return `values` of the moves that end where each starts, until the next call for them."""
        around = self._around.get(what)
        if around is None or around.shape != values.shape:
            around = self._around[what] = np.empty(values.shape)
        split = values.shape[-1] - turn
        around[..., turn:] = values[..., :split]
        around[..., :turn] = values[..., split:]
        return around

    def _tabled(self, rows: RoundRows, rnd: Round, pattern: Pattern) -> _Table | None:
        """Return a table of the runs of a round that goes around: row i + m = row i for m moves."""
        if self._grows and rnd.add:
            return None
        merged = rnd.merged if self._grows else 0
        speed = pattern.wire.speed
        key = id(rows.first), id(rows.stop), rnd.add, merged, pattern if speed is None else speed
        if key != self._key:
            self._key, self._table = key, None
            size = len(rnd.src)
            if all(len(x) == 2 * size and (x[:size] == x[size:]).all() for x in rows[:2]):
                self._table = self._fill(rows, rnd, pattern)
        return self._table

    def _fill(self, rows: RoundRows, rnd: Round, pattern: Pattern) -> _Table:
        wire = self._payload.wire(rows.first, rows.stop, rnd.merged)
        code, merge = self._coding(rows.first, rows.stop, rnd.add, wire, self._share(rnd))
        known = pattern.wire.speed is not None
        busy = pattern.wire.port(wire) if known else None
        alone = pattern.wire.alone(wire) if known and pattern.wire.crowded else None
        least = pattern.wire.least(float(wire.min())) if busy is None else float(busy.min())
        most = 0.0 if merge is None else float(merge.max())
        return _Table(rows, wire, busy, alone, code, merge, least, most)

    def _coding(
        self, first: Ints, stop: Ints, add: bool, wire: Floats, share: float
    ) -> tuple[Floats | None, Floats | None]:
        """Return the seconds to encode and to merge each message: a share of the rates."""
        rate = self._rate
        raw = self._payload.raw(first, stop) if rate.encode or rate.decode else wire
        code = share * (rate.fixed + raw * rate.encode) if rate.encode else None
        if add:
            return code, share * (
                rate.per_add + wire * rate.add
            ) if rate.add or rate.per_add else None
        return code, share * (rate.per_decode + raw * rate.decode) if rate.decode else None


def coding_of_a_rank(schedule: Schedule, payload: Payload, machine: Machine) -> float:
    """Return the processor time that a rank codes for in an exchange, the mean of the ranks, s."""
    works = Works(payload, machine, tables=False)
    return sum(works.processor_seconds(rnd) for rnd in schedule.rounds()) / schedule.ranks
