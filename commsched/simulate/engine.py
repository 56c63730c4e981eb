"""Places every operation in time: streams are first in, first out; ranks are columns."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from commsched.cost import price
from commsched.errors import CommschedError
from commsched.exchange.method import Phase
from commsched.exchange.registry import method_at
from commsched.kernels import random
from commsched.plan.model import Plan
from commsched.program.model import Kind, Op, Role, is_exchange_stream
from commsched.program.parts import parts_of, seconds
from commsched.program.phases import decided_phase
from commsched.program.registry import STRATEGIES
from commsched.simulate.cpu import SharedCores, Spans, longer, under_compute
from commsched.simulate.critical_path import Placed
from commsched.simulate.pipelines import Clocks, PipelineMessages, is_pipeline, moving
from commsched.simulate.result import Prediction
from commsched.simulate.team_exchange import (
    Exchanged,
    ExchangeTeams,
    exchanged,
    machine_of,
    teams_of,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Progress = Callable[[int], None]
MOVES = 2**26  # that one simulation plays, about a second
EXCHANGES = (Kind.EXCHANGE, Kind.DECIDE)
CODINGS = (Kind.ENCODE, Kind.DECODE, Kind.MERGE)
SAME = 1e-11  # s to which starts are equal where exchanges are kept

# An exchange and how its ranks start one after the other -> ends from the first start on, B sent.
Known = dict[tuple[object, ...], tuple[Floats, Floats]]
Slower = dict[tuple[int, int, str], Floats]  # (role, step, coding) -> how many times, (ranks,)


@dataclass(slots=True, eq=False)
class _Lane:
    """One stream of one role: its queue of operations and each rank's clock."""

    role: int
    stream: str
    queue: deque[tuple[int, Op]] = field(default_factory=deque)
    free: Floats = field(default_factory=lambda: np.zeros(0))
    sent: Floats = field(default_factory=lambda: np.zeros(0))  # ends of the last exchange


class _Simulation:
    """State of a run of the simulator."""

    def __init__(
        self, plan: Plan, decisions: Mapping[str, float], limit: int, slower: Slower
    ) -> None:
        self.plan = plan
        self.slower = slower
        self.known: Known | None = None
        self.limit = limit
        self.decisions = decisions
        self.strategy = STRATEGIES[plan.strategy]
        self.placed: list[Placed] = []
        self.ends: dict[tuple[int, int, str], Floats] = {}  # (role, step, name) -> (ranks,)
        self.lanes: dict[tuple[int, str], _Lane] = {}
        self.ranks: list[Ints] = []
        self.crowds: list[SharedCores] = []
        self.factor: list[Floats] = []
        self.sharers: dict[tuple[int, str], list[int]] = {}  # roles of an exchange of this step on
        self.stream: dict[tuple[int, str], str] = {}  # (role, name) of operations
        self.messages: PipelineMessages | None = None  # of pipelines

    def step(self, step: int) -> None:
        """Place all operations of one step."""
        program = self.strategy.lower(self.plan, step, self.decisions)
        if not self.ranks:
            self.ranks = [np.array(role.ranks, np.int64) for role in program.roles]
            self.crowds = [SharedCores(self.plan.machine, ranks) for ranks in self.ranks]
        machine, seed = self.plan.machine, self.plan.seed
        self.factor = [random.jitter(machine.jitter, seed, step, r) for r in self.ranks]
        if is_pipeline(program.roles):
            self._pipelines(step, program.roles)
        for index, role in enumerate(program.roles):
            self._queue(step, index, role)
            self.crowds[index].forget_before(
                min(
                    (lane.free.min() for lane in self.lanes.values() if lane.role == index),
                    default=0.0,
                )
            )
        self._place_all()

    def _lane(self, index: int, stream: str) -> _Lane:
        if (index, stream) not in self.lanes:
            free = np.zeros(len(self.ranks[index]))
            self.lanes[index, stream] = _Lane(index, stream, free=free, sent=free)
        return self.lanes[index, stream]

    def follow(self, plan: Plan, step: int) -> None:
        """Go on with another plan from a step on, once all that was placed has ended everywhere.

        The new launches' results of the step before are what the old ones have brought.
        """
        self.plan = plan
        over = max(float(placed.end.max()) for placed in self.placed)
        for lane in self.lanes.values():
            lane.free = lane.sent = np.full_like(lane.free, over)
        program = self.strategy.lower(plan, step - 1, self.decisions)
        for index, role in enumerate(program.roles):
            for op in role.ops:
                self.ends.setdefault((index, step - 1, op.name), np.full(len(role.ranks), over))

    def _queue(self, step: int, index: int, role: Role) -> None:
        for op in role.ops:
            if (index, step, op.name) in self.ends:
                continue  # it is placed already
            self.stream[index, op.name] = op.stream
            self._lane(index, op.stream).queue.append((step, op))
            if op.kind in EXCHANGES:
                self.sharers.setdefault((step, op.name), []).append(index)

    def _pipelines(self, step: int, roles: tuple[Role, ...]) -> None:
        """Place a step's computations and messages; all that they need of earlier steps is."""
        if self.messages is None or self.messages.roles is not roles:
            self.messages = PipelineMessages(self.plan.machine, roles)
        made, streams = self.messages, ("compute", "send", "receive")
        lanes = [[self._lane(i, stream) for i in range(len(roles))] for stream in streams]
        clocks = Clocks(*(np.array([lane.free for lane in row]) for row in lanes))
        earlier = {
            (key, back): self.ends[key[0], step - back, key[1]]
            for _, key, back in made.outside
            if step >= back
        }
        own, there = made.place(clocks, np.array(self.factor), earlier)
        for row, free in zip(lanes, (clocks.compute, clocks.send, clocks.receive), strict=True):
            for lane, until in zip(row, free, strict=True):
                lane.free = until
        for i, role in enumerate(roles):
            ranks = self.ranks[i]
            for op in moving(role):
                at = made.places[i, op.name]
                found = there if op.kind is Kind.RECV else own
                sent = np.full(made.columns, float(op.nbytes * (op.kind is Kind.SEND)))
                start, end = found.start[at], found.end[at]
                self.ends[i, step, op.name] = end
                self.placed.append(Placed(op, step, ranks, start, end, sent, ranks))

    def _place_all(self) -> None:
        """Place heads of streams whose inputs are placed, until nothing is left."""
        moved = True
        while moved:
            moved = False
            for lane in self.lanes.values():
                while lane.queue and self._place(lane):
                    moved = True
                    if is_exchange_stream(lane.stream):
                        break  # the decode that it starts shares the processor with the next one
        stuck = [lane.queue[0][1].name for lane in self.lanes.values() if lane.queue]
        assert not stuck, f"operations wait for each other: {stuck}"

    def _place(self, lane: _Lane) -> bool:
        step, op = lane.queue[0]
        # An exchange of several roles is placed for all of them, once it is at all their heads.
        lanes = [self.lanes[role, op.stream] for role in self.sharers.get((step, op.name), [])]
        lanes = lanes or [lane]
        heads = [each.queue[0] if each.queue else (-1, op) for each in lanes]
        if any((s, head.name) != (step, op.name) for s, head in heads):
            return False
        starts = []
        for each, (_, head) in zip(lanes, heads, strict=True):
            keys = [(each.role, step - back, name) for name, back in head.after if step >= back]
            if any(key not in self.ends for key in keys):
                return False
            ready = np.max([self.ends[key] for key in keys], axis=0, initial=0.0)
            if any(self.stream.get((each.role, key[2])) != each.stream for key in keys):
                ready = self._taken_up(head, step, each, ready)
            starts.append(np.maximum(each.free, ready))
        if op.kind in EXCHANGES:
            found = self._exchange(op, step, lanes, starts)
        else:
            nothing = np.zeros(len(starts[0]))
            found = [(self._end(op, step, lane, starts[0]), nothing, self.ranks[lane.role])]
        rows = zip(lanes, heads, starts, found, strict=True)
        for each, (_, head), start, (end, sent, last) in rows:
            each.queue.popleft()
            each.free = end
            if op.kind in EXCHANGES:
                each.sent = end
            self.ends[each.role, step, head.name] = end
            ranks = self.ranks[each.role]
            self.placed.append(Placed(head, step, ranks, start, end, sent, last))
        self.sharers.pop((step, op.name), None)
        return True

    def _taken_up(self, op: Op, step: int, lane: _Lane, ready: Floats) -> Floats:
        """When a thread has heard that another one has made its operation ready: (ranks,) s.

        A thread that has still something to do looks as soon as that is done.
        """
        mean, ranks = self.plan.machine.handover, self.ranks[lane.role]
        if mean == 0.0:
            return ready
        later = random.exponential(mean, self.plan.seed, step, ranks, f"handover of {op.name}")
        return np.where(ready > lane.free, ready + later, ready)

    def _end(self, op: Op, step: int, lane: _Lane, start: Floats) -> Floats:
        """When an operation of the ranks by themselves ends: (ranks,) s."""
        if op.kind in (Kind.COMPUTE, Kind.APPLY):
            return start + op.seconds * self.factor[lane.role]
        sigma, ranks = self.plan.machine.coding_jitter, self.ranks[lane.role]
        factor = random.jitter(sigma, self.plan.seed, step, ranks, op.name)
        factor = factor * self.slower.get((lane.role, step, op.name), 1.0)
        return self.crowds[lane.role].coded(start, start + factor * self._coding(op, step))

    def slower_beside(self) -> Slower:
        """How many times longer codings last for what they lie beside."""
        found: Slower = {}
        for role, ranks in enumerate(self.ranks):
            mine = [placed for placed in self.placed if placed.ranks is ranks]
            codings = [placed for placed in mine if placed.op.kind in CODINGS]
            exchanges = [placed for placed in mine if placed.op.kind in EXCHANGES]
            if not codings or not exchanges:
                continue
            times = longer(_spans(codings), _spans(exchanges), self.plan.machine.slowed)
            keys = ((role, placed.step, placed.op.name) for placed in codings)
            found.update(zip(keys, times, strict=True))
        return found

    def _coding(self, op: Op, step: int) -> float:
        """Seconds of the parts of an operation, without jitter."""
        if op.launch < 0:
            return 0.0
        plan, numel = self.plan, self.plan.spec(self.plan.launches[op.launch]).numel
        phase = self._phase(op, step)
        return seconds(parts_of(plan, op), phase, numel, plan.machine.device)

    def _phase(self, op: Op, step: int) -> Phase:
        return decided_phase(self.plan, op, step, self.decisions)

    def _exchange(
        self, op: Op, step: int, lanes: list[_Lane], starts: list[Floats]
    ) -> list[tuple[Floats, Floats, Ints]]:
        """End, bytes handed to MPI, and who comes last, for the ranks of each role."""
        teams = teams_of(self.plan, op.launch, op.team)
        mine = [self.ranks[lane.role] for lane in lanes]
        start = np.full(self.plan.machine.size, np.nan)
        rest = np.full(self.plan.machine.size, np.inf)  # before the first exchange: long
        # A vote may be its launch's first operation.
        before = self._coding(op, step) if op.kind is Kind.DECIDE else 0.0
        for lane, ranks, begins in zip(lanes, mine, starts, strict=True):
            start[ranks] = begins + before
            rest[ranks] = np.where(lane.sent > 0.0, start[ranks] - lane.sent, np.inf)
        count = sum(map(len, mine))
        if count != teams.ranks.size or np.isnan(start[teams.ranks]).any():
            name = self.plan.launches[op.launch].name
            raise CommschedError(
                f"launch {name!r} exchanges among {teams.ranks.size} of {count} ranks; the"
                f" {self.plan.strategy!r} strategy exchanges among all"
            )
        found = self._played(op, step, teams, start[teams.ranks], rest[teams.ranks])
        end, sent, last = np.zeros(len(start)), np.zeros(len(start)), np.arange(len(start))
        end[teams.ranks], sent[teams.ranks] = found
        exchange = op.kind is Kind.EXCHANGE
        within = self._phase(op, step).within_seconds(self.plan.machine.device) if exchange else 0.0
        rows = np.arange(len(teams.ranks))
        latest = teams.ranks[rows, start[teams.ranks].argmax(axis=1)]
        last[teams.ranks] = latest[:, np.newaxis]
        made = []
        for lane, ranks, begins in zip(lanes, mine, starts, strict=True):
            ends = end[ranks]
            compute = self.lanes.get((lane.role, "compute"))
            if compute is not None:
                ends = under_compute(begins, ends, compute.free, self.plan.machine.overlap)
            ends = ends + within
            latest = np.minimum(start[last[ranks]], ends)
            ends = self.crowds[lane.role].stretched(latest, ends)
            made.append((ends, sent[ranks], last[ranks]))
        return made

    def _played(
        self, op: Op, step: int, teams: ExchangeTeams, start: Floats, rest: Floats
    ) -> Exchanged:
        """End and bytes of an exchange by itself; what was played before is not played again.

        start, rest: (teams, members) s, when each begins and for how long its port has had
        nothing to do.
        """
        machine = machine_of(self.plan, op.launch)
        rest = np.minimum(rest, machine.burst)
        key: tuple[object, ...] = ()
        if self.known is not None:
            first = start.min()
            apart = np.rint(np.stack([start - first, rest]) / SAME).astype(np.int64).tobytes()
            launch = self.plan.launches[op.launch]
            spec = self.plan.spec(launch)
            dense = all(law.law == "dense" for law, *_ in spec.pieces)
            content = spec.numel if dense else spec
            who = op.team, op.root, launch.among
            method = method_at(launch.method, step).name
            key = method, content, op.phase, op.kind, self.limit, who, apart
            if key in self.known:
                after, sent = self.known[key]
                return Exchanged(first + after, sent)
        phase = None if op.kind is Kind.DECIDE else self._phase(op, step)
        found = exchanged(machine, phase, teams, start, rest, op.phase > 0, self.limit)
        if self.known is not None:
            self.known[key] = found.end - first, found.sent
        return found


def _spans(placed: list[Placed]) -> Spans:
    return Spans(np.array([p.start for p in placed]), np.array([p.end for p in placed]))


def simulate(
    plan: Plan,
    steps: int = 3,
    decisions: Mapping[str, float] | None = None,
    progress: Progress | None = None,
    moves: int = MOVES,
    known: Known | None = None,
    changes: Mapping[int, Plan] | None = None,
) -> Prediction:
    """Predict the timeline of a plan over some steps.

    Each stream of a rank does one operation at a time, in program order; an operation starts when
    its stream is free and its inputs are there. An exchange is priced with every rank's own start.
    `decisions` are the agreed numbers of a recorded run; without them the expected ones are taken.
    Exchanges are played move by move as long as `moves` last for all of them; larger ones are
    priced by their closed form from the start of the last rank. `known` keeps what was played for
    other simulations of expected decisions on the same machine: starts then count to 10 ps.
    `changes` are other plans of the same tensors and roles, by the step from which on they hold:
    then all ranks wait for all. Where exchanges slow the coding beside them, all is placed twice:
    first without that, to see what lies beside what.
    """
    if steps < 1:
        raise CommschedError(f"steps must be at least 1, got {steps}")
    share = moves // (steps * max(len(plan.launches), 1))
    assert known is None or not decisions
    changes = {step: other for step, other in (changes or {}).items() if 0 < step < steps}
    assert known is None or not changes

    def placed(slower: Slower, progress: Progress | None) -> _Simulation:
        simulation = _Simulation(plan, decisions or {}, min(price.LIMIT, share), slower)
        simulation.known = known
        for step in range(steps):
            if step in changes:
                simulation.follow(changes[step], step)
            simulation.step(step)
            if progress is not None:
                progress(step)
        return simulation

    slower = placed({}, None).slower_beside() if plan.machine.slowed > 1.0 else {}
    simulation = placed(slower, progress)
    memory = simulation.strategy.memory(plan)
    return Prediction(
        plan=plan, steps=steps, placed=simulation.placed, memory=memory, changes=changes
    )
