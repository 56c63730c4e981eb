"""Computations and messages of pipelines, in order of time; replicas are columns.

The k-th ranks of all roles are one pipeline, apart from the others until the replicas exchange.
Each turn places, in every pipeline at once, the operation that begins first there.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from commsched.arrays import Bools, Floats, Ints
from commsched.cost.pattern import Places, first_byte
from commsched.machine.model import Machine
from commsched.program.model import Kind, Op, Role
from commsched.program.placer import serve_next
from commsched.schedule.rounds import Round
from commsched.simulate.clocks import Clocks

Key = tuple[int, str]  # role, name
STREAMS = ("compute", "send", "receive")
MOVING = (Kind.COMPUTE, Kind.SEND, Kind.RECV)


def is_pipeline(roles: Sequence[Role]) -> bool:
    """Tell whether ranks send messages to single ranks, or messages order the computations."""
    return any(op.kind is Kind.SEND or op.urgency for role in roles for op in role.ops)


def moving(role: Role) -> list[Op]:
    """Return the operations of a role that `PipelineMessages` places."""
    return [op for op in role.ops if op.kind in MOVING]


@dataclass(slots=True)
class Moments:
    """When each operation begins and ends: (operations, columns) s."""

    start: Floats
    end: Floats


@dataclass(eq=False)
class PipelineMessages:
    """The operations of one step as tables; used for every step of the same roles.

    A message costs as in `cost.play`:
        leaves  = max(inputs, send port)
        arrives = max(leaves + S + o + L, receive port) + n G + o
    S [s] = the machine's start-up, after which a thread that was idle has heard of it; ranks of a
    node that send it together share their NIC.
    """

    machine: Machine
    roles: tuple[Role, ...]
    ops: list[Op] = field(init=False)  # SENDs stand for both of their ends
    role: Ints = field(init=False)  # of each operation

    def __post_init__(self) -> None:
        sizes = {len(role.ranks) for role in self.roles}
        assert len(sizes) == 1, "pipelines have as many ranks in every role"
        self.columns = sizes.pop()
        pairs = [(r, op) for r, role in enumerate(self.roles) for op in moving(role)]
        self.received = {(r, op.name): op for r, op in pairs if op.kind is Kind.RECV}
        pairs = [(r, op) for r, op in pairs if op.kind is not Kind.RECV]
        self.ops = [op for _, op in pairs]
        self.role = np.array([r for r, _ in pairs], np.int64)
        self.peer = np.array([max(op.peer, 0) for op in self.ops], np.int64)
        self.is_send = np.array([op.kind is Kind.SEND for op in self.ops])
        self.seconds = np.array([op.seconds for op in self.ops])
        self.places: dict[Key, int] = {(r, op.name): i for i, (r, op) in enumerate(pairs)}
        for i, (_, op) in enumerate(pairs):
            if op.kind is Kind.SEND:
                self.places[op.peer, op.match] = i
        self._queues()
        self._successors()
        self._links()

    def _queues(self) -> None:
        """Queue the equally urgent operations of each stream; sends come first."""
        queues: dict[tuple[bool, int, int], list[int]] = {}
        for i, op in enumerate(self.ops):
            key = (not self.is_send[i], op.urgency, int(self.role[i]))
            queues.setdefault(key, []).append(i)
        self.lane = np.zeros(len(queues), np.int64)  # compute of role r: r; its sends: roles + r
        self.urgency = np.zeros((len(queues), 1), np.int64)
        self.queue_of = np.zeros(len(self.ops) + 1, np.int64)
        longest = max(map(len, queues.values()))
        none = len(self.ops)
        self.queue = np.full((len(queues) + 1, longest + 1), none)
        for number, key in enumerate(sorted(queues)):
            computes, urgency, role = key
            self.lane[number] = role if computes else len(self.roles) + role
            self.urgency[number] = urgency
            self.queue[number, : len(queues[key])] = queues[key]
            self.queue_of[queues[key]] = number
        self.queue_of[none] = len(queues)

    def _successors(self) -> None:
        """Tabulate the operations that wait for each operation, and their other inputs."""
        none = len(self.ops)
        found: list[list[int]] = [[] for _ in self.ops]
        self.missing = np.zeros(none + 1, np.int64)
        self.outside: list[tuple[int, Key, int]] = []  # operation, its input, steps back
        for i, op in enumerate(self.ops):
            for name, back in op.after:
                key = (int(self.role[i]), name)
                if back:
                    self.outside.append((i, key, back))
                else:
                    found[self.places[key]].append(i)
                    self.missing[i] += 1
        self.missing[none] = 1
        width = max(map(len, found), default=0)
        self.next = np.full((none, max(width, 1)), none)
        for i, some in enumerate(found):
            self.next[i, : len(some)] = some

    def _links(self) -> None:
        """Tabulate each message's seconds from port to port: (operations, columns)."""
        places = Places(self.machine, self.machine.everyone)
        self.busy = np.zeros((len(self.ops), self.columns))
        self.away = np.zeros((len(self.ops), self.columns))
        sends: dict[tuple[int, int, int], list[int]] = defaultdict(list)  # alike
        for i in np.flatnonzero(self.is_send).tolist():
            sends[int(self.role[i]), self.ops[i].peer, self.ops[i].nbytes].append(i)
        blocks = np.zeros(self.columns, np.int64)
        for (source, peer, nbytes), some in sends.items():
            src, dst = (np.array(self.roles[r].ranks, np.int64) for r in (source, peer))
            wire = places.pattern(Round(src, dst, blocks, blocks + 1, False, 1)).wire
            self.busy[some] = wire.port(np.full(self.columns, float(nbytes)))
            self.away[some] = wire.away + self.machine.startup

    def place(
        self, clocks: Sequence[Clocks], factor: Floats, earlier: Mapping[tuple[Key, int], Floats]
    ) -> tuple[Moments, Moments]:
        """Run one step; moments of the operations, and of the receives at the ends of sends.

        clocks: of each role; they move on. factor: (roles, columns) on compute; earlier: when
        inputs of earlier steps ended, by input and steps back, (columns,) s.
        """
        ready = np.zeros((len(self.ops) + 1, self.columns))
        for i, key, back in self.outside:
            if (key, back) in earlier:
                ready[i] = np.maximum(ready[i], earlier[key, back])
        free = [np.array([own.free[stream] for own in clocks]) for stream in STREAMS]
        every = [*free, factor, self.busy, self.away, ready]
        kept, back_to = np.unique(np.concatenate(every), axis=1, return_inverse=True)
        cuts = np.cumsum([len(part) for part in every])[:-1]
        run = _Run(self, *np.split(kept, cuts))  # equal pipelines are placed once
        run.all()
        columns = back_to.reshape(-1)
        for stream, until in zip(STREAMS, (*np.split(run.free, 2), run.port), strict=True):
            for own, moments in zip(clocks, until[:, columns], strict=True):
                own.free[stream] = moments
        return (
            Moments(run.start[:, columns], run.end[:, columns]),
            Moments(run.begun[:, columns], run.arrived[:, columns]),
        )


class _Run:
    """The state of one step: each call of `_turn` places one operation in every column."""

    def __init__(
        self,
        made: PipelineMessages,
        compute: Floats,
        send: Floats,
        receive: Floats,
        factor: Floats,
        busy: Floats,
        away: Floats,
        ready: Floats,
    ) -> None:
        self.made = made
        self.free = np.concatenate([compute, send])
        self.port = receive.copy()
        self.factor, self.busy, self.away = factor, busy, away
        self.ready = ready.copy()  # when the inputs that are known have ended
        columns = ready.shape[1]
        self.column = np.arange(columns)
        self.missing = np.repeat(made.missing[:, None], columns, axis=1)
        shape = (len(made.ops), columns)
        self.start, self.end = np.zeros(shape), np.zeros(shape)
        self.begun, self.arrived = np.zeros(shape), np.zeros(shape)
        self.at = np.zeros((len(made.queue), columns), np.int64)
        heads = made.queue[:, :1].repeat(columns, axis=1)
        self.head = self._when(heads, np.broadcast_to(self.column, heads.shape))
        self.head[-1] = np.inf

    def _when(self, op: Ints, column: Ints) -> Floats:
        """Return when the inputs of operations are there, as far as known."""
        return np.where(self.missing[op, column] == 0, self.ready[op, column], np.inf)

    def all(self) -> None:
        """Place every operation of the step."""
        for _ in range(len(self.made.ops)):
            self._turn()

    def _turn(self) -> None:
        made, column = self.made, self.column
        queue, begin = serve_next(self.free[made.lane], self.head[:-1], made.urgency)
        start = begin[queue, column]
        assert np.isfinite(start).all(), "operations wait for each other"
        op = made.queue[queue, self.at[queue, column]]
        sends = made.is_send[op]
        end = start + made.seconds[op] * self.factor[made.role[op], column]
        end = np.where(sends, start + self.busy[op, column], end)
        done = self._received(op, sends, start, end)
        self.start[op, column], self.end[op, column] = start, end
        self.free[made.lane[queue], column] = end
        self.at[queue, column] += 1
        for place in range(made.next.shape[1]):
            self._tell(made.next[op, place], done)
        new = made.queue[queue, self.at[queue, column]]
        self.head[queue, column] = self._when(new, column)

    def _received(self, op: Ints, sends: Bools, start: Floats, end: Floats) -> Floats:
        """Note when operations that wait for this operation, or for its message, may begin."""
        made, column = self.made, self.column
        if not sends.any():
            return end
        peer = made.peer[op]
        port = self.port[peer, column]
        arrived = first_byte(start, self.away[op, column], port) + self.busy[op, column]
        self.begun[op, column] = np.where(sends, np.maximum(start, port), 0.0)
        self.arrived[op, column] = np.where(sends, arrived, 0.0)
        self.port[peer, column] = np.where(sends, arrived, port)
        return np.where(sends, arrived, end)

    def _tell(self, op: Ints, done: Floats) -> None:
        """Note that an input of operations, one per column, has ended."""
        made, column = self.made, self.column
        self.ready[op, column] = np.maximum(self.ready[op, column], done)
        self.missing[op, column] -= 1
        self.missing[-1] = 1
        queue = made.queue_of[op]
        first = made.queue[queue, self.at[queue, column]] == op
        when = np.where(first, self._when(op, column), self.head[queue, column])
        self.head[queue, column] = when
        self.head[-1] = np.inf
