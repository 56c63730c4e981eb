"""Computations and messages of pipelines, in order of time; replicas are columns.

The k-th ranks of all roles are one pipeline, apart from the others until the replicas exchange;
neighbouring pipelines of tensor-parallel ranks are a team, which goes through its turns together.
Each turn places, in every team at once, the operation that begins first there.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from commsched.arrays import Bools, Floats, Ints
from commsched.cost.pattern import Places, first_byte
from commsched.machine.model import Machine
from commsched.program.model import Kind, Op, Role
from commsched.program.placer import serve_next
from commsched.schedule.rounds import Round
from commsched.simulate.clocks import Clocks
from commsched.simulate.one_pipeline import PipelineState, Turns, place_one
from commsched.simulate.turns import Chain, SumCost, chains

Key = tuple[int, str]  # role, name
STREAMS = ("compute", "send", "receive")


def is_pipeline(roles: Sequence[Role]) -> bool:
    """Tell whether ranks send messages to single ranks, or messages order the computations."""
    return any(op.kind is Kind.SEND or op.urgency for role in roles for op in role.ops)


def placed_at_once(roles: Sequence[Role]) -> list[int]:
    """Count whose times each role keeps: its operations, or the whole turns of a pipeline."""
    if not is_pipeline(roles):
        return [len(role.ops) for role in roles]
    turns = [[op.turn for op in role.ops] for role in roles]
    return [some.count(None) + len({*some} - {None}) for some in turns]


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
    width: int = 1  # neighbouring columns that go through their turns together
    cost: Callable[[Op], SumCost] = lambda op: SumCost(0.0, 0.0)  # of a turn's sums
    handover: float = 0.0  # s, mean until another thread takes up what is ready
    few: int = 16  # unlike pipelines that are placed one by one
    chains: list[Chain] = field(init=False)  # SENDs stand for both of their ends
    ops: list[Op] = field(init=False)  # the first of each chain
    role: Ints = field(init=False)  # of each operation

    def __post_init__(self) -> None:
        sizes = {len(role.ranks) for role in self.roles}
        assert len(sizes) == 1, "pipelines have as many ranks in every role"
        self.columns = sizes.pop()
        found = chains(self.roles, self.cost, self.handover, self.width)
        self.chains = [*found]
        self.teams = self.columns // self.width
        self.ops = [chain.first for chain in self.chains]
        self.role = np.array([chain.role for chain in self.chains], np.int64)
        self.peer = np.array([max(op.peer, 0) for op in self.ops], np.int64)
        self.is_send = np.array([op.kind is Kind.SEND for op in self.ops])
        times = np.array([chain.times() for chain in self.chains], np.float64)
        self.message = np.cumsum(self.is_send) - 1  # number of a SEND among them
        self.messages = int(self.is_send.sum())
        self.sums = times[:, 0] > 0
        self.opening, self.middle, self.common, self.closing = times.T[1:, :, np.newaxis]
        self.places: dict[Key, int] = {
            (chain.role, chain.last.name): i for i, chain in enumerate(self.chains)
        }
        for i, op in enumerate(self.ops):
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
        """Tabulate the seconds of messages, with their coding, from port to port: (wires, columns).

        Equal messages share a wire; computations have the first one, which takes no time.
        """
        busy, away = [np.zeros(self.columns)], [np.zeros(self.columns)]
        sends: dict[tuple[int, int, int, float, float], list[int]] = defaultdict(list)  # alike
        decode = {(r, op.name): op.seconds for r, role in enumerate(self.roles) for op in role.ops}
        for i in np.flatnonzero(self.is_send).tolist():
            op = self.ops[i]
            coding = op.seconds, decode[op.peer, op.match]
            sends[(int(self.role[i]), op.peer, op.nbytes, *coding)].append(i)
        self.wire = np.zeros(len(self.ops), np.int64)
        for (source, peer, nbytes, encode, decoding), some in sends.items():
            src, dst = (self.roles[r].ranks for r in (source, peer))
            port, later = message_seconds(self.machine, src, dst, nbytes)
            self.wire[some] = len(busy)
            busy.append(encode + port)
            away.append(later + decoding)
        self.busy, self.away = np.array(busy), np.array(away)
        _, self.alike = _distinct(np.concatenate([self.busy, self.away]))
        self.waiting = sorted({i for i, *_ in self.outside})

    @cached_property
    def turns(self) -> Turns:
        """Return the tables as lists, for pipelines that are placed one by one."""
        none, message = len(self.ops), np.where(self.is_send, self.message, -1)
        queues = [[i for i in row if i < none] for row in self.queue[:-1].tolist()]
        place = {i: k for queue in queues for k, i in enumerate(queue)}
        return Turns(
            queues,
            self.lane.tolist(),
            self.urgency[:, 0].tolist(),
            self.queue_of[:none].tolist(),
            [place[i] for i in range(none)],
            [[i for i in row if i < none] for row in self.next.tolist()],
            self.missing[:none].tolist(),
            self.waiting,
            self.role.tolist(),
            self.peer.tolist(),
            self.wire.tolist(),
            message.tolist(),
            self.sums.tolist(),
            *(x[:, 0].tolist() for x in (self.opening, self.middle, self.common, self.closing)),
        )

    def place(
        self, clocks: Sequence[Clocks], factor: Floats, earlier: Mapping[tuple[Key, int], Floats]
    ) -> tuple[Moments, Moments]:
        """Run one step; moments of the operations, and of the receives at the ends of sends.

        clocks: of each role; they move on. factor: (roles, columns) on compute; earlier: when
        inputs of earlier steps ended, by input and steps back, (columns,) s.
        """
        ready = np.zeros((len(self.waiting), self.columns))
        for i, key, back in self.outside:
            if (key, back) in earlier:
                row = ready[self.waiting.index(i)]
                np.maximum(row, earlier[key, back], out=row)
        free = [np.array([own.free[stream] for own in clocks]) for stream in STREAMS]
        every = [*free, factor, ready, self.alike[np.newaxis].astype(np.float64)]
        # A column for each team, with the numbers of all its members: equal teams are placed once.
        teams = np.concatenate(every).reshape(-1, self.teams, self.width)
        first, place = _distinct(teams.swapaxes(1, 2).reshape(-1, self.teams))

        def of_teams(values: Floats) -> Floats:
            return values.reshape(-1, self.teams, self.width)[:, first]

        state = map(of_teams, (*free, factor, self.busy, self.away, ready))
        run = _StepState(self, *state)
        alike = bool((teams == teams[..., :1]).all())  # the members of every team
        if alike and len(first) <= self.few:
            run.one_by_one()
        else:
            run.all()

        def of_columns(values: Floats) -> Floats:
            return values[:, place].reshape(len(values), self.columns)

        for stream, until in zip(STREAMS, (*np.split(run.free, 2), run.port), strict=True):
            for own, moments in zip(clocks, of_columns(until), strict=True):
                own.free[stream] = moments
        return (
            Moments(of_columns(run.start), of_columns(run.end)),
            Moments(of_columns(run.begun), of_columns(run.arrived)),
        )


def message_seconds(
    machine: Machine, source: Sequence[int], to: Sequence[int], nbytes: float
) -> tuple[Floats, Floats]:
    """Return how long messages keep a port busy, and are away between ports: (ranks,) s each.

    Each rank of `source` sends `nbytes` B to the rank at its place in `to`, all at once.
    """
    src, dst, first = np.array(source), np.array(to), np.zeros(len(source), np.int64)
    places = Places.of(machine, machine.everyone)
    wire = places.pattern(Round(src, dst, first, first + 1, False, 1)).wire
    away = np.broadcast_to(wire.away + machine.startup, len(src))
    return wire.port(np.full(len(src), float(nbytes))), away


def _distinct(table: Floats) -> tuple[Ints, Ints]:
    """Return the first of each kind of equal columns, and the kind of every column."""
    rows = np.ascontiguousarray(table.T)
    whole = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).reshape(-1)
    _, first, kinds = np.unique(whole, return_index=True, return_inverse=True)
    return first, kinds.reshape(-1)


class _StepState:
    """The state of one step: each call of `_turn` places one chain in every team.

    Times are (chains, teams, members) s; the members of a team do the same at the same time.
    """

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
        teams = factor.shape[1]
        # When the inputs that are known have ended.
        self.ready = np.zeros((len(made.ops) + 1, *factor.shape[1:]))
        self.ready[made.waiting] = ready
        self.until = self.free.max(axis=-1)  # all members of a team
        self.team = np.arange(teams)
        self.missing = np.repeat(made.missing[:, None], teams, axis=1)
        shape = (len(made.ops), *factor.shape[1:])
        self.start, self.end = np.zeros(shape), np.zeros(shape)
        self.begun, self.arrived = (np.zeros((made.messages, *shape[1:])) for _ in range(2))
        self.at = np.zeros((len(made.queue), teams), np.int64)
        heads = made.queue[:, :1].repeat(teams, axis=1)
        self.head = self._when(heads, np.broadcast_to(self.team, heads.shape))
        self.head[-1] = np.inf

    def _when(self, op: Ints, team: Ints) -> Floats:
        """Return when the inputs of operations are there on all members, as far as known."""
        return np.where(self.missing[op, team] == 0, self.ready[op, team].max(axis=-1), np.inf)

    def one_by_one(self) -> None:
        """Place every operation of the step, team by team; the members of each are alike."""
        for team in self.team.tolist():
            free, port, factor, busy, away, ready = (
                values[:, team, 0].tolist()
                for values in (
                    self.free,
                    self.port,
                    self.factor,
                    self.busy,
                    self.away,
                    self.ready[self.made.waiting],
                )
            )
            pipeline = PipelineState(free, port, factor, busy, away, ready)
            found = place_one(self.made.turns, pipeline)
            ours = (self.start, self.end, self.begun, self.arrived, self.free, self.port)
            for values, moments in zip(ours, found, strict=True):
                values[:, team] = np.array(moments)[:, np.newaxis]

    def all(self) -> None:
        """Place every operation of the step."""
        for _ in range(len(self.made.ops)):
            self._turn()

    def _turn(self) -> None:
        made, team = self.made, self.team
        queue, begin = serve_next(self.until[made.lane], self.head[:-1], made.urgency)
        assert np.isfinite(begin[queue, team]).all(), "operations wait for each other"
        op = made.queue[queue, self.at[queue, team]]
        lane = made.lane[queue]
        start = np.maximum(self.free[lane, team], self.ready[op, team])
        sends = made.is_send[op][:, np.newaxis]
        end = np.where(sends, start + self.busy[made.wire[op], team], self._computed(op, start))
        done = self._received(op, sends, start, end)
        self.start[op, team], self.end[op, team] = start, end
        self.free[lane, team] = end
        self.until[lane, team] = end.max(axis=-1)
        self.at[queue, team] += 1
        for place in range(made.next.shape[1]):
            self._tell(made.next[op, place], done)
        new = made.queue[queue, self.at[queue, team]]
        self.head[queue, team] = self._when(new, team)

    def _computed(self, op: Ints, start: Floats) -> Floats:
        """Return when turns end that begin at `start`, see `Chain`."""
        made = self.made
        factor = self.factor[made.role[op], self.team]
        opened: Floats = start + made.opening[op] * factor
        if not made.sums.any():
            return opened
        together = opened.max(axis=-1, keepdims=True)
        together = together + made.common[op] + made.middle[op] * factor.max(axis=-1, keepdims=True)
        summed: Floats = together + made.closing[op] * factor
        return np.where(made.sums[op][:, np.newaxis], summed, opened)

    def _received(self, op: Ints, sends: Bools, start: Floats, end: Floats) -> Floats:
        """Note when operations that wait for this operation, or for its message, may begin."""
        made, team = self.made, self.team
        if not sends.any():
            return end
        sending = np.flatnonzero(sends)
        op, team, start = op[sending], team[sending], start[sending]
        peer, wire, message = made.peer[op], made.wire[op], made.message[op]
        port = self.port[peer, team]
        arrived = first_byte(start, self.away[wire, team], port) + self.busy[wire, team]
        self.begun[message, team] = np.maximum(start, port)
        self.arrived[message, team] = self.port[peer, team] = arrived
        done = end.copy()
        done[sending] = arrived
        return done

    def _tell(self, op: Ints, done: Floats) -> None:
        """Note that an input of operations, one per team, has ended."""
        made, team = self.made, self.team
        self.ready[op, team] = np.maximum(self.ready[op, team], done)
        self.missing[op, team] -= 1
        self.missing[-1] = 1
        queue = made.queue_of[op]
        first = made.queue[queue, self.at[queue, team]] == op
        when = np.where(first, self._when(op, team), self.head[queue, team])
        self.head[queue, team] = when
        self.head[-1] = np.inf
