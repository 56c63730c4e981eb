"""The price of a schedule, round by round: LogGP on ports, for all ranks at once."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from commsched.arrays import Floats, Ints
from commsched.cost.message_work import MessageWork, Works
from commsched.cost.pattern import Pattern, Places, SeveralPlaces, by_turns, first_byte, once
from commsched.exchange.payload import Payload, Payloads
from commsched.machine.model import Group, Machine
from commsched.schedule.rounds import Schedule

CLOCKS = 2**15  # ranks of all exchanges that are played side by side: they fit the cache
FEW = 2**10  # moves: the rounds of such a schedule are kept, 100 kB or less
KEPT = 256  # exchanges whose rounds a group keeps


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """Costs of an exchange for each member of its group."""

    end: Floats  # (p,) s, when its last send has left and its last receive is merged
    sent: Floats  # (p,) B handed to MPI
    messages: Ints  # (p,) sent
    rest: Floats | float = 0.0  # (p,) s that its ports have been idle at `end`, see `play`
    formula: bool = False  # whether a closed form made it, and not the play of its moves


class ExchangeRun(NamedTuple):
    """An exchange to play: members of a group that arrive at `start`, (p,) s."""

    payload: Payload
    machine: Machine
    start: Floats
    rest: Floats | float = 0.0  # s that each member's ports have been idle


def play(
    schedule: Schedule,
    payload: Payload,
    machine: Machine,
    group: Group,
    start: Floats,
    rest: Floats | float = 0.0,
) -> Played:
    """Price one exchange whose members arrive at `start`, (p,) s.

    A message leaves when the sender holds its data and its send port is free:
        sent     = max(data + encode, send port)
        arrived  = max(sent + o + L, receive port) + n G + o
        merged   = max(arrived, processor) + add or decode
    L, o [s], G [s/B] of the slower end's link; n [B]. Ports and processor serve one message at a
    time, in the order of the rounds. If k ranks share a NIC, each has a port that is busy for
    k n G of the NIC: messages of several ranks alternate, so that bytes of one hide the latency of
    others.

    A port is a token bucket if the machine has a `burst` b [s]: its clock runs behind by up to b,
    but by no more than its idle time, which is `rest` [s] at the start, and what it has left then
    at the end:
        sent     = max(data + encode - b, send port)
        arrived  = max(sent + o + L, receive port) + n G + o,  at least data + encode + o + L
    Ranks that share a NIC take turns: messages of up to its `turn` leave one after the other. So
    the first ranks' last messages have left before their ports would be free.
    The bucket is the generic cell rate algorithm (ITU-T I.371) with the bytes' own times.
    Source: Alexandrov et al., "LogGP", SPAA 1995; per-rank clocks as in Hoefler et al.,
    "LogGOPSim", HPDC 2010.
    """
    assert schedule.ranks == len(start)
    places, ports = Places.of(machine, group), start - np.minimum(rest, machine.burst)
    if moves_up_to(schedule, FEW) > FEW:
        rounds: Iterable[_Round] = _rounds(schedule, Works(payload, machine), places)
    else:
        rounds = once(machine, group, _KeptRounds).of(schedule, payload)
    return _Play(rounds, start, ports).run()


class _Round(NamedTuple):
    """What is played of a round."""

    waits: int | None  # see `schedule.rounds.Round`
    pattern: Pattern
    work: MessageWork


def _rounds(schedule: Schedule, works: Works, places: Places | SeveralPlaces) -> Iterator[_Round]:
    for rnd in schedule.rounds():
        pattern = places.pattern(rnd)
        work = works.whole(rnd, pattern) if pattern.shape.whole else works.some(rnd, pattern)
        yield _Round(rnd.waits, pattern, work)


class _KeptRounds:
    """The rounds of short schedules that a group has played lately."""

    def __init__(self, machine: Machine, group: Group) -> None:
        self._machine, self._group = machine, group
        # By ids of what the values keep alive.
        self._kept: dict[tuple[int, int], tuple[Schedule, Payload, list[_Round]]] = {}

    def of(self, schedule: Schedule, payload: Payload) -> list[_Round]:
        """Return the rounds of an exchange."""
        key = id(schedule), id(payload)
        if key not in self._kept:
            if len(self._kept) == KEPT:
                self._kept.pop(next(iter(self._kept)))
            works = Works(payload, self._machine, tables=False)
            rounds = [*_rounds(schedule, works, Places.of(self._machine, self._group))]
            self._kept[key] = schedule, payload, rounds
        return self._kept[key][2]


@lru_cache(maxsize=4096)
def moves_up_to(schedule: Schedule, limit: int) -> int:
    """Count the moves of a schedule, but stop once there are more than `limit`."""
    moves = 0
    for rnd in schedule.rounds():
        moves += len(rnd.src)
        if moves > limit:
            break
    return moves


def play_all(schedule: Schedule, group: Group, runs: Sequence[ExchangeRun]) -> list[Played]:
    """Play exchanges of one schedule side by side, each as `play` does alone, equal ones once.

    Machines may differ in their links; ports that pass bytes in bursts are played alone.
    """
    found: dict[int, Played] = {}
    first_of: dict[tuple[object, ...], int] = {}
    same = [first_of.setdefault(_identity(one), i) for i, one in enumerate(runs)]
    left, most = list(first_of.values()), max(1, CLOCKS // group.size)
    while left:
        first = runs[left[0]]
        where = [i for i in left if i == left[0] or _beside(first, runs[i])][:most]
        taken = set(where)
        left = [i for i in left if i not in taken]
        if len(where) == 1:
            found[where[0]] = play(schedule, first.payload, first.machine, group, *first[2:])
            continue
        some = sorted(where, key=lambda i: id(runs[i].machine))
        works = Works(Payloads([runs[i].payload for i in some]), first.machine)
        places = SeveralPlaces([runs[i].machine for i in some], group)
        start = np.stack([runs[i].start for i in some])
        one = _Play(_rounds(schedule, works, places), start, start).run()
        for i, end, sent in zip(some, one.end, one.sent, strict=True):
            found[i] = Played(end, sent, one.messages)
    return [found[i] for i in same]


def _identity(one: ExchangeRun) -> tuple[object, ...]:
    """Return a key that tells an exchange from others, by the identities of its parts."""
    rest = one.rest if isinstance(one.rest, float) else id(one.rest)
    return id(one.payload), id(one.machine), one.start.tobytes(), rest


def _beside(one: ExchangeRun, other: ExchangeRun) -> bool:
    """Tell whether two exchanges can be played side by side."""
    if one.payload.codec is not other.payload.codec:
        return False
    a, b = one.machine, other.machine
    if by_turns(a) or (a is not b and by_turns(b)):
        return False
    if one.payload.grows != other.payload.grows:
        return False
    if one.payload.grows and one.payload.density != other.payload.density:
        return False  # a byte takes longer to code
    if (one.payload.cuts is None) != (other.payload.cuts is None):
        return False
    return a is b or (a.alone == b.alone and a.size == b.size and a.device == b.device)


class _Play:
    """Clocks of all ranks during the rounds, in the order of the current pattern.

    With several payloads each clock has a row for each of them: (payloads, p).
    """

    def __init__(self, rounds: Iterable[_Round], start: Floats, ports: Floats) -> None:
        self.size = start.shape[-1]
        self.rounds = rounds
        self.order: Ints | None = None  # the rank of each clock; None: ranks ascend
        self.start = start
        self.kept = start  # `merged` after the rounds that a `waits` names
        self.merged = start  # all received data is merged
        self.send_port = self.receive_port = ports
        # s by which a rank's last messages leave and arrive before its ports are free
        self.early: Floats | None = None  # (2, p); None: 0
        self.processor = start
        self.lag = 0.0  # processor - receive port is at most this, s
        self.sent = np.zeros(start.shape)
        self.messages = np.zeros(self.size, np.int64)
        # Times at which senders leave, twice around, so that receivers read theirs as one slice.
        self.around = np.zeros((*start.shape[:-1], 2 * self.size))

    def run(self) -> Played:
        """Play all rounds. No clock is changed in place: several may be one array."""
        pattern: Pattern | None = None
        uses = 0
        for number, (waits, own, work) in enumerate(self.rounds):
            if own is not pattern:
                self._count(pattern, uses)
                pattern, uses = own, 0
                self._reorder(own.shape.order)
                self._turn(own.shape.turn or 0)
            uses += 1
            held = self.merged if waits is None else self._held(waits, number)
            place = self._whole if own.shape.whole else self._some
            place(work, own, held)
        self._count(pattern, uses)
        self._reorder(None)
        ports = np.stack([self.send_port, self.receive_port])
        busy = ports.max(axis=0)
        if self.early is not None:
            ports -= self.early
        end = np.maximum(ports.max(axis=0), np.maximum(self.merged, self.processor))
        return Played(end, self.sent, self.messages, np.maximum(end - busy, 0.0))

    def _held(self, waits: int, number: int) -> Floats:
        """Return when each rank has merged what it received in the first `waits` rounds."""
        if waits == 0:
            return self.start
        if waits == number:
            self.kept = self.merged
        return self.kept

    def _count(self, pattern: Pattern | None, uses: int) -> None:
        if pattern is not None:
            moves = slice(None) if pattern.shape.whole else pattern.shape.src
            self.messages[moves] += uses

    def _reorder(self, order: Ints | None) -> None:
        """Bring all clocks into the order of another pattern."""
        if order is self.order:
            return
        old = np.arange(self.size)
        if self.order is not None:
            old[self.order] = old.copy()
        take = old if order is None else old[order]
        names = "start", "kept", "merged", "send_port", "receive_port", "processor", "sent"
        for name in (*names, "messages"):
            setattr(self, name, getattr(self, name)[..., take])
        if self.early is not None:
            self.early = self.early[..., take]
        self.order = order

    def _turn(self, turn: int) -> None:
        """Slice `around` for a pattern whose moves reach `turn` places ahead."""
        size, around = self.size, self.around
        first = size - turn
        self.leaves = around[..., size:]
        self.wrapped, self.last = around[..., first:size], around[..., first + size :]
        self.came = around[..., first : first + size]

    def _whole(self, work: MessageWork, pattern: Pattern, held: Floats) -> None:
        """Play a round as `_some` does, faster: every rank sends and receives one message."""
        wire, busy, busy_back, alone_back, code, merge, least, most = work
        ready = held
        if code is not None:
            self.processor = ready = np.maximum(held, self.processor) + code
            self.lag = np.inf
        leaves = np.maximum(ready, self.send_port, out=self.leaves)
        self.send_port = leaves + busy
        if pattern.shape.turn is None:
            arrives = leaves[..., pattern.shape.back]
            arrives += pattern.away_back
        else:
            self.wrapped[...] = self.last
            arrives = self.came + pattern.away_back
        np.maximum(arrives, self.receive_port, out=arrives)
        if alone_back is None:
            arrives += busy_back
            self.receive_port = arrives
        else:
            self.receive_port = arrives + busy_back
            arrives += alone_back
        if alone_back is not None or self.lag > least:  # otherwise the processor is idle
            arrives = np.maximum(arrives, self.processor)
        self.lag = max(0.0, self.lag - least) + most
        self.merged = self.processor = arrives if merge is None else arrives + merge
        self.early = None
        self.sent += wire

    def _some(self, work: MessageWork, pattern: Pattern, held: Floats) -> None:
        """Play a round in which ranks send and receive at most one message each. Ranks ascend."""
        src, dst = pattern.shape.src, pattern.shape.dst
        processor, send_port, receive_port, merged = (
            clock.copy()
            for clock in (self.processor, self.send_port, self.receive_port, self.merged)
        )
        ready = held[..., src]
        if work.code is not None:
            processor[..., src] = ready = np.maximum(ready, processor[..., src]) + work.code
        leaves = np.maximum(ready - pattern.burst, send_port[..., src])
        send_port[..., src] = leaves + work.busy
        begins = first_byte(leaves, pattern.wire.away, receive_port[..., dst])
        receive_port[..., dst] = begins + work.busy
        alone = work.busy if work.alone_back is None else work.alone_back
        # Even in a burst, nothing arrives before it has been sent.
        arrives = np.maximum(
            np.maximum(begins + alone, ready + pattern.wire.away), processor[..., dst]
        )
        processor[..., dst] = merged[..., dst] = (
            arrives if work.merge is None else arrives + work.merge
        )
        if pattern.turn or self.early is not None:
            lump = np.minimum(work.wire, pattern.turn)
            early = np.zeros((2, *processor.shape)) if self.early is None else self.early.copy()
            early[0][..., src] = lump * pattern.behind[0]
            early[1][..., dst] = lump * pattern.behind[1]
            self.early = early
        self.processor, self.send_port = processor, send_port
        self.receive_port, self.merged = receive_port, merged
        self.lag = np.inf
        self.sent[..., src] += work.wire
