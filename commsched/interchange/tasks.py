"""A plan as tasks of ranks: work, sends, receives, and the tasks that each one waits for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from commsched.arrays import Floats
from commsched.cost.message_work import Works
from commsched.cost.pattern import Places
from commsched.cost.price import taken_by_library
from commsched.errors import CommschedError
from commsched.exchange.method import Phase
from commsched.exchange.pair import route
from commsched.exchange.payload import Payload
from commsched.exchange.registry import method_at
from commsched.exchange.vote import voting
from commsched.plan.model import Plan
from commsched.program.model import Kind, Op
from commsched.program.parts import parts_of, seconds, values_of
from commsched.program.phases import decided_phase
from commsched.program.placer import EXCHANGES
from commsched.schedule.rounds import Goal
from commsched.simulate.engine import simulate
from commsched.simulate.team_exchange import machine_of, side_by_side, teams_of
from commsched.simulate.timetable import PlacedOp

MOST = 4_000_000  # tasks; files of this many have about 400 MB


class TaskKind(StrEnum):
    """The kind of a task."""

    WORK = "work"  # local: compute, coding, adding, or a point without work
    SEND = "send"
    RECEIVE = "receive"
    ALL_REDUCE = "all-reduce"  # of all ranks; each rank has one task


class Task(NamedTuple):
    """One task of a rank; `after` are numbers of its earlier tasks, which must all be over."""

    number: int
    name: str
    kind: TaskKind
    step: int
    stream: str
    after: tuple[int, ...]
    seconds: float = 0.0
    nbytes: int = 0
    peer: int = -1
    tag: int = -1  # unique among the messages from one rank to another


class Side(NamedTuple):
    """A rank's end of a message."""

    peer: int
    nbytes: int
    seconds: float  # to encode the sent data, or to merge the received data


class Moves(NamedTuple):
    """The messages of one round."""

    sends: Mapping[int, Side]  # by rank
    receives: Mapping[int, Side]
    waits: int | None  # see `Round.waits`


class Rounds(NamedTuple):
    """The messages of an exchange, and a rank's own seconds before the first and after the last."""

    before: float
    moves: Sequence[Moves]
    within: float


def tasks(plan: Plan, steps: int = 1, collectives: bool = False) -> list[list[Task]]:
    """Return the tasks of every rank, in an order in which it can do them.

    The operations of a stream keep the prediction's order; a rank's own work lasts as predicted;
    messages are those of the schedules. A `native` exchange has the messages of the algorithm that
    the library chooses. With `collectives`, an all-reduce of float32 among all ranks is one task,
    and its messages are left to the reader.
    """
    wanted = _Tasks(plan, collectives)
    own: list[list[tuple[float, float, PlacedOp, int]]] = [[] for _ in range(plan.machine.size)]
    for placed in simulate(plan, steps).placed:
        wanted.count(placed)
        times = placed.start.tolist(), placed.end.tolist()
        for column, (rank, start, end) in enumerate(
            zip(placed.ranks.tolist(), *times, strict=True)
        ):
            own[rank].append((start, end - start, placed, column))
    for rank, events in enumerate(own):
        for _, spent, placed, column in sorted(events, key=lambda event: event[0]):
            wanted.place(rank, placed, column, spent)
    return wanted.made


@dataclass(eq=False)
class _Tasks:
    plan: Plan
    collectives: bool
    made: list[list[Task]] = field(init=False)
    total: int = 0

    def __post_init__(self) -> None:
        ranks = self.plan.machine.size
        self.made = [[] for _ in range(ranks)]
        self.ends: list[dict[tuple[int, str], int]] = [{} for _ in range(ranks)]
        self.busy: list[dict[str, int]] = [{} for _ in range(ranks)]  # last task of a stream
        self.rounds: dict[tuple[object, ...], Rounds | int] = {}
        self.tags: dict[tuple[object, ...], int] = {}
        self.next_tag = 0

    def count(self, placed: PlacedOp) -> None:
        """Count tasks; raise an error if the plan has too many."""
        self.total += len(placed.ranks)
        if placed.op.kind in EXCHANGES:
            rounds = self._rounds(placed)
            if not isinstance(rounds, int):
                own = set(placed.ranks.tolist())
                self.total += sum(3 * len(own & each.sends.keys()) for each in rounds.moves)
        if self.total > MOST:
            raise CommschedError(
                f"the plan has more than {MOST:,} messages and operations; plan for fewer ranks,"
                " or give fewer --steps"
            )

    def place(self, rank: int, placed: PlacedOp, column: int, spent: float) -> None:
        """Add the tasks of an operation of `spent` seconds on one of its ranks."""
        op, step = placed.op, placed.step
        before = [self.ends[rank].get((step - back, name)) for name, back in op.after]
        before.append(self.busy[rank].get(op.stream))
        after = tuple(sorted({number for number in before if number is not None}))
        if op.kind in EXCHANGES:
            last = self._exchange(rank, placed, after)
        elif op.kind in (Kind.SEND, Kind.RECV):
            kind = TaskKind.SEND if op.kind is Kind.SEND else TaskKind.RECEIVE
            last = self._message(rank, placed, column, kind, after)
        else:
            last = self._add(rank, op.name, TaskKind.WORK, placed, after, seconds=spent)
        self.ends[rank][step, op.name] = self.busy[rank][op.stream] = last

    def _add(
        self,
        rank: int,
        name: str,
        kind: TaskKind,
        placed: PlacedOp,
        after: Sequence[int],
        *,
        seconds: float = 0.0,
        nbytes: int = 0,
        peer: int = -1,
        tag: int = -1,
    ) -> int:
        mine, stream = self.made[rank], placed.op.stream
        task = Task(
            len(mine), name, kind, placed.step, stream, tuple(after), seconds, nbytes, peer, tag
        )
        mine.append(task)
        return task.number

    def _message(
        self, rank: int, placed: PlacedOp, column: int, kind: TaskKind, after: Sequence[int]
    ) -> int:
        """Add one end of a message between two roles, whose ranks of equal column are partners."""
        op, machine = placed.op, self.plan.machine
        roles = self._roles(placed.step)
        peer = roles[op.peer][column]
        ends = (rank, peer) if kind is TaskKind.SEND else (peer, rank)
        tag = self._tag(("message", placed.step, *ends, op.tag), 1)
        seconds = machine.startup if kind is TaskKind.SEND else 0.0
        begin = self._add(rank, f"{op.name} begin", TaskKind.WORK, placed, after, seconds=seconds)
        return self._add(rank, op.name, kind, placed, [begin], nbytes=op.nbytes, peer=peer, tag=tag)

    def _roles(self, step: int) -> list[tuple[int, ...]]:
        from commsched.program.registry import STRATEGIES

        lowered = STRATEGIES[self.plan.strategy].lower(self.plan, step, {})
        return [role.ranks for role in lowered.roles]

    def _tag(self, key: tuple[object, ...], count: int) -> int:
        """Return the first of `count` tags, the same for all ranks."""
        if key not in self.tags:
            self.tags[key] = self.next_tag
            self.next_tag += count
        return self.tags[key]

    def _exchange(self, rank: int, placed: PlacedOp, after: Sequence[int]) -> int:
        op, machine = placed.op, self.plan.machine
        rounds = self._rounds(placed)
        if isinstance(rounds, int):
            return self._add(
                rank, op.name, TaskKind.ALL_REDUCE, placed, after, nbytes=rounds, tag=placed.step
            )
        before, moves, within = rounds
        mine = [each for each in moves if rank in each.sends or rank in each.receives]
        if not mine:
            return self._add(rank, op.name, TaskKind.WORK, placed, after, seconds=before + within)
        first = self._tag(("exchange", placed.step, op.name, op.team), len(moves))
        spent = before + machine.startup
        begin = self._add(rank, f"{op.name} begin", TaskKind.WORK, placed, after, seconds=spent)
        held = [begin]  # held[k]: task after which the data received in k rounds is merged
        sent: list[int] = []
        for number, each in enumerate(moves):
            name, tag = f"{op.name} {number}", first + number
            if rank in each.sends:
                side = each.sends[rank]
                ready = held[-1] if each.waits is None else held[min(each.waits, len(held) - 1)]
                if side.seconds:
                    what = f"{name} encode"
                    ready = self._add(
                        rank, what, TaskKind.WORK, placed, [ready], seconds=side.seconds
                    )
                sent.append(
                    self._end(rank, f"{name} send", TaskKind.SEND, placed, ready, side, tag)
                )
            merged = held[-1]
            if rank in each.receives:
                side = each.receives[rank]
                what = f"{name} receive"
                came = self._end(rank, what, TaskKind.RECEIVE, placed, begin, side, tag)
                merged = self._add(
                    rank,
                    f"{name} merge",
                    TaskKind.WORK,
                    placed,
                    [merged, came],
                    seconds=side.seconds,
                )
            held.append(merged)
        over = sorted({*sent, held[-1]})
        return self._add(rank, op.name, TaskKind.WORK, placed, over, seconds=within)

    def _end(
        self,
        rank: int,
        name: str,
        kind: TaskKind,
        placed: PlacedOp,
        after: int,
        side: Side,
        tag: int,
    ) -> int:
        return self._add(
            rank, name, kind, placed, [after], nbytes=side.nbytes, peer=side.peer, tag=tag
        )

    def _rounds(self, placed: PlacedOp) -> Rounds | int:
        """Return the rounds of an exchange, or the bytes of an all-reduce in one task."""
        op = placed.op
        method = ""  # the method may change with the step: DGC's density rises
        if op.launch >= 0:
            method = method_at(self.plan.launches[op.launch].method, placed.step).name
        key = op.launch, op.phase, op.team, op.root, op.kind, op.name, method
        if key not in self.rounds:
            phase = decided_phase(self.plan, op, placed.step, {}) if op.launch >= 0 else None
            self.rounds[key] = (
                self._whole(op, phase) if self.collectives else _rounds(self.plan, op, phase)
            )
        return self.rounds[key]

    def _whole(self, op: Op, phase: Phase | None) -> int:
        launch = self.plan.launches[op.launch] if op.launch >= 0 else None
        if (
            phase is None
            or launch is None
            or op.kind is Kind.DECIDE
            or phase.schedule.goal is not Goal.ALL_REDUCE
            or phase.payload.codec.name != "dense"
            or phase.schedule.ranks != self.plan.machine.size
        ):
            raise CommschedError(
                f"--collectives: {op.name} is no all-reduce of float32 among all ranks; leave the"
                " option out to write messages"
            )
        return 4 * self.plan.spec(launch).numel


def _rounds(plan: Plan, op: Op, phase: Phase | None) -> Rounds:
    """Return the messages of an exchange, with ranks numbered as in the machine."""
    device = plan.machine.device
    before = within = 0.0
    if phase is not None and op.kind is Kind.DECIDE:
        before = seconds(parts_of(plan, op), phase, values_of(plan, op.launch), device)
    elif phase is not None:
        within = phase.within_seconds(device)
    teams = teams_of(plan, op.launch, op.team)
    machine, group, count = machine_of(plan, op.launch), teams.first, len(teams.ranks)
    if phase is None or op.kind is Kind.DECIDE:
        phase = voting(group, lambda state: 0.0)
    schedule, payload = phase.schedule, phase.payload
    taken = taken_by_library(schedule, payload, machine, group)
    if taken is not None:
        assert payload.spec is not None
        schedule = route(taken.collective, group)
        payload = Payload.reducing(schedule, payload.codec, payload.spec)
        machine = taken.on(machine)
    ranks = teams.ranks.ravel()
    if count > 1:
        schedule, group = side_by_side(schedule, count), plan.team(ranks)
    works, places = Works(payload, machine), Places(machine, group)
    found = []
    for rnd in schedule.rounds():
        work = works.some(rnd, places.pattern(rnd))
        src, dst = ranks[rnd.src].tolist(), ranks[rnd.dst].tolist()
        sizes = np.rint(work.wire).astype(np.int64).tolist()
        code, merge = _listed(work.code, len(src)), _listed(work.merge, len(src))
        found.append(
            Moves(
                dict(zip(src, map(Side, dst, sizes, code), strict=True)),
                dict(zip(dst, map(Side, src, sizes, merge), strict=True)),
                rnd.waits,
            )
        )
    return Rounds(before, found, within)


def _listed(seconds: Floats | None, count: int) -> list[float]:
    return [0.0] * count if seconds is None else np.broadcast_to(seconds, (count,)).tolist()
