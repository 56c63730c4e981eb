"""Place every operation of a plan's programs in time; the ranks of a role are columns."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np

from commsched.arrays import Floats, Ints
from commsched.cost import price
from commsched.cost.chain import handling_seconds
from commsched.errors import CommschedError
from commsched.plan.model import Plan
from commsched.program.model import Kind, Op, Role
from commsched.program.parts import (
    GATHER,
    CodingTime,
    handover_seconds,
    parts_of,
    seconds,
    values_of,
)
from commsched.program.placer import EXCHANGES, StreamQueue, serve
from commsched.program.registry import STRATEGIES
from commsched.program.slowness import slowness
from commsched.simulate.clocks import Clocks, Waking
from commsched.simulate.core_sharing import CoreSharing, Key, Settling
from commsched.simulate.cores import ROUNDS, SETTLED
from commsched.simulate.draws import Draws
from commsched.simulate.exchange_costs import GRAIN, ExchangeCosts, Known
from commsched.simulate.pipelines import PipelineMessages, is_pipeline
from commsched.simulate.result import Prediction
from commsched.simulate.team_exchange import teams_of
from commsched.simulate.timetable import PlacedAlone, PlacedOp, PlacedTurn, Source, Teams, by_source
from commsched.simulate.turns import SumCost, moving

Progress = Callable[[int], None]
MOVES = 2**26  # moves that one simulation plays in about a second


class _Simulation:
    """State of a run of the simulator; parties of an exchange are roles."""

    def __init__(
        self,
        plan: Plan,
        decisions: Mapping[str, float],
        exchanges: ExchangeCosts,
        sharing: CoreSharing,
        draws: Draws,
    ) -> None:
        self.plan = plan
        self.decisions = decisions
        self.exchanges = exchanges
        exchanges.plan = plan
        self.strategy = STRATEGIES[plan.strategy]
        self.placed: list[PlacedOp] = []
        self.ends: dict[Key, PlacedOp] = {}  # what has been placed
        self.sharing = sharing
        self.draws = draws
        self.queues: dict[tuple[int, str], StreamQueue] = {}  # by role and stream
        self.ranks: list[Ints] = []
        self.clocks: list[Clocks] = []
        self.idle: dict[tuple[int, str], Floats] = {}  # s since when a stream's ports are idle
        self.factor: list[Floats] = []
        self.sharers: dict[tuple[int, str], list[int]] = {}  # roles of an exchange of this step on
        self.stream: dict[tuple[int, str], str] = {}  # (role, name) of operations
        self.messages: PipelineMessages | None = None
        # s, and whether a bucket is gathered, by what decides it in this plan
        self.coding: dict[tuple[object, ...], tuple[float, bool]] = {}

    @property
    def handover(self) -> float:
        """Return the mean until another thread of a rank takes up a ready operation, s."""
        return handover_seconds(self.plan.machine, self.plan.net)

    @property
    def coding_time(self) -> CodingTime:
        """Return how long the ranks' coding lasts."""
        return CodingTime.of(self.plan.machine, self.plan.net)

    def step(self, step: int) -> None:
        """Place all operations of one step."""
        program = self.strategy.lower(self.plan, step, self.decisions)
        machine, seed = self.plan.machine, self.plan.seed
        if not self.ranks:
            self.ranks = [np.array(role.ranks, np.int64) for role in program.roles]
            self.waking = Waking.of(machine, self.coding_time)
            self.clocks = [Clocks(len(ranks), machine.overlap, self.waking) for ranks in self.ranks]
        self.factor = [
            slowness(machine, seed, step, ranks, role.computing if machine.stalls else 0.0)
            for ranks, role in zip(self.ranks, program.roles, strict=True)
        ]
        if is_pipeline(program.roles):
            self._pipelines(step, program.roles)
        for index, role in enumerate(program.roles):
            self._queue(step, index, role)
        serve(self.queues, self._partners, self._ready, self._place)

    def follow(self, plan: Plan, step: int) -> None:
        """Continue with another plan from a step on, after all placed operations have ended.

        The old launches stand for the new ones in the step before.
        """
        self.plan = self.exchanges.plan = plan
        self.coding = {}
        over = max(float(some[0].source.end.max()) for some in by_source(self.placed))
        for clocks in self.clocks:
            clocks.free.update({s: np.full_like(f, over) for s, f in clocks.free.items()})
        self.idle = {lane: np.full_like(since, over) for lane, since in self.idle.items()}
        program = self.strategy.lower(plan, step - 1, self.decisions)
        for index, role in enumerate(program.roles):
            moment = np.full(len(role.ranks), over)
            source = PlacedAlone(moment, moment, np.zeros_like(moment), self.ranks[index])
            for op in role.ops:
                placed = PlacedOp(op, step - 1, self.ranks[index], source)
                self.ends.setdefault((index, step - 1, op.name), placed)

    def _queue(self, step: int, index: int, role: Role) -> None:
        for op in role.ops:
            if (index, step, op.name) in self.ends:
                continue  # it is placed already
            self.stream[index, op.name] = op.stream
            lane = index, op.stream
            self.queues.setdefault(lane, StreamQueue()).append((step, op))
            self.idle.setdefault(lane, self.clocks[index].free[op.stream])
            if op.kind in EXCHANGES:
                self.sharers.setdefault((step, op.name), []).append(index)

    def _pipelines(self, step: int, roles: tuple[Role, ...]) -> None:
        """Place a step's computations and messages; their inputs of earlier steps are placed."""
        if self.messages is None or self.messages.roles is not roles:
            self.messages = self._messages(roles)
        made = self.messages
        earlier = {
            (key, back): self.ends[key[0], step - back, key[1]].end
            for _, key, back in made.outside
            if step >= back
        }
        for i in range(len(roles)):
            self.queues.setdefault((i, "compute"), StreamQueue())  # the first to be served
        own, there = made.place(self.clocks, np.array(self.factor), earlier)
        every = zip(self.ranks, self.factor, strict=True)
        teams = [Teams(ranks, factor, made.width) for ranks, factor in every]
        for chain, start, end in zip(made.chains, own.start, own.end, strict=True):
            turn = PlacedTurn(chain, start, end, teams[chain.role])
            for number, part in enumerate(chain.parts):
                self._note(chain.role, step, part.op, turn, number)
            # What follows on the stream of sums waits for the turn's last one.
            last = {part.op.stream: part.op.name for part in chain.parts if part.op.launch >= 0}
            free = self.clocks[chain.role].free
            for stream, name in last.items():
                until = self.ends[chain.role, step, name].end
                free[stream] = np.maximum(free[stream], until)
        nothing = np.zeros(made.columns)
        for i, role in enumerate(roles):
            for op in moving(role):
                if op.kind is Kind.RECV:
                    at = made.message[made.places[i, op.name]]
                    start, end = there.start[at], there.end[at]
                    self._note(i, step, op, PlacedAlone(start, end, nothing, self.ranks[i]))

    def _messages(self, roles: tuple[Role, ...]) -> PipelineMessages:
        """Tabulate the turns and messages of some roles."""
        machine = self.plan.machine
        sums = [op.launch for role in roles for op in moving(role) if op.launch >= 0]
        width = teams_of(self.plan, sums[0], None).ranks.shape[1] if sums else 1

        @cache
        def cost(launch: int, kind: Kind, phase: int) -> SumCost:
            op = Op(kind=kind, name="", stream="", launch=launch, phase=phase)
            if kind is not Kind.EXCHANGE:
                return SumCost(self._coding(op, 0)[0], 0.0)
            teams = teams_of(self.plan, launch, None)
            alone = np.zeros((1, width))
            found = self.exchanges.played(op, 0, teams, alone, np.full_like(alone, np.inf))
            within = self.exchanges.phase(op, 0).within_seconds(machine.device)
            return SumCost(float(found.end.max()) + within, float(found.sent.max()))

        return PipelineMessages(
            machine, roles, width, lambda op: cost(op.launch, op.kind, op.phase), self.handover
        )

    def _note(self, role: int, step: int, op: Op, source: Source, number: int = 0) -> None:
        placed = PlacedOp(op, step, self.ranks[role], source, number)
        self.ends[role, step, op.name] = placed
        self.placed.append(placed)

    def _partners(self, role: int, step: int, op: Op) -> Sequence[int]:
        return self.sharers.get((step, op.name), [role])

    def _inputs(self, role: int, step: int, op: Op) -> list[tuple[int, int, str]]:
        return [(role, step - back, name) for name, back in op.after if step >= back]

    def _ready(self, role: int, step: int, op: Op) -> bool:
        return all(key in self.ends for key in self._inputs(role, step, op))

    def _place(self, step: int, roles: Sequence[int], ops: Sequence[Op]) -> None:
        """Place one operation of one or several roles."""
        ready = [self._inputs_at(role, step, op) for role, op in zip(roles, ops, strict=True)]
        if ops[0].kind in EXCHANGES:
            self._exchange(step, roles, ops, ready)
            self.sharers.pop((step, ops[0].name), None)
            return
        (role,), (op,) = roles, ops
        start = self._start(role, step, op, ready[0])
        end = self._end(role, step, op, ready[0], start)
        self._note(role, step, op, PlacedAlone(start, end, np.zeros(len(start)), self.ranks[role]))

    def _inputs_at(self, role: int, step: int, op: Op) -> Floats:
        """Return when the inputs of an operation are there on the ranks of a role: (ranks,) s."""
        keys = self._inputs(role, step, op)
        ready: Floats = self.ends[keys[0]].end if keys else np.zeros(len(self.ranks[role]))
        for key in keys[1:]:
            ready = np.maximum(ready, self.ends[key].end)
        return ready

    def _start(self, role: int, step: int, op: Op, ready: Floats) -> Floats:
        """Return when the ranks of a role begin an operation that is ready: (ranks,) s.

        An idle thread is woken late when another thread makes its operation ready. A busy thread
        looks for the next operation as soon as its own work is done.
        """
        clocks, keys = self.clocks[role], self._inputs(role, step, op)
        machine, ranks = self.plan.machine, self.ranks[role]
        if self.handover and any(self.stream.get((role, key[2])) != op.stream for key in keys):
            computing = self.plan.net.occupies_cores & (clocks.free["compute"] > ready)
            mean = machine.handover + machine.handover_computing * computing
            if self.waking:
                mean = mean * self.waking.handed_over(clocks.asleep(op.stream, ready))
            later = ready + mean * self.draws.handover(self.plan, role, step, ranks, op.name)
            sleeps = ready > clocks.free[op.stream]
            self.sharing.begun(role, ready, sleeps * machine.handover_work)
            ready = np.where(sleeps, later, ready)
        return clocks.begin(op.stream, ready)

    def _end(self, role: int, step: int, op: Op, ready: Floats, start: Floats) -> Floats:
        """Return the end of an operation that each rank does alone: (ranks,) s."""
        if op.kind in (Kind.COMPUTE, Kind.APPLY):
            paces = np.resize(op.paces, len(start)) if op.paces else 1.0
            seconds = op.seconds * paces * self.factor[role]
            demand = float(self.plan.net.occupies_cores)
        else:
            ranks = self.ranks[role]
            factor = self.draws.coding(self.plan, role, step, ranks, op.name)
            alone, gathers = self._coding(op, step)
            taken = np.full(len(ranks), alone)
            if self.waking:
                waking = self.waking.cold + gathers * self.waking.gather
                asleep = self.clocks[role].asleep(op.stream, ready)
                taken -= self.waking.saved(taken, waking, asleep)
            seconds, demand = factor * taken, 1.0
        codes = op.kind not in (Kind.COMPUTE, Kind.APPLY)
        seconds = self.sharing.seconds(
            (role, step, op.name), op.stream, start, seconds, demand, codes
        )
        end = self.clocks[role].free[op.stream] = start + seconds
        return end

    def _coding(self, op: Op, step: int) -> tuple[float, bool]:
        """Return an operation's s, without jitter, and whether it gathers a bucket."""
        if op.launch < 0:
            return 0.0, False
        plan = self.plan
        method = self.exchanges.method(op, step)
        key = op.kind, op.launch, op.phase, op.root, op.alone, method
        if key not in self.coding:
            numel, phase = values_of(plan, op.launch), self.exchanges.phase(op, step)
            parts = parts_of(plan, op)
            price = seconds(parts, phase, numel, plan.machine.device)
            lasts = self.coding_time.lasts(price)
            self.coding[key] = lasts, GATHER in parts
        return self.coding[key]

    def _exchange(
        self, step: int, roles: Sequence[int], ops: Sequence[Op], ready: Sequence[Floats]
    ) -> None:
        """Place an exchange whose inputs are there at `ready`: (ranks,) s of each role."""
        op, stream, machine = ops[0], ops[0].stream, self.plan.machine
        teams = teams_of(self.plan, op.launch, op.team)
        start = np.full(machine.size, np.nan)
        rest = np.full(machine.size, np.inf)  # before the first exchange: long
        asleep = np.ones(machine.size)
        every = zip(roles, ops, ready, strict=True)
        starts = [self._start(role, step, own, there) for role, own, there in every]
        # A vote is taken before it is exchanged, maybe of a bucket that is gathered first.
        before = self._coding(op, step)[0] if op.kind is Kind.DECIDE else 0.0
        for role, own, there, begins in zip(roles, ops, ready, starts, strict=True):
            ranks = self.ranks[role]
            key, taken = (role, step, f"{own.name}/vote"), np.full(len(ranks), before)
            start[ranks] = begins + self.sharing.seconds(
                key, stream, begins, taken, float(before > 0.0), codes=True
            )
            rest[ranks] = start[ranks] - self.idle[role, stream]
            if self.waking:
                asleep[ranks] = self.clocks[role].asleep(stream, there)
        cold = self.coding_time.cold * machine.alone
        count = sum(len(self.ranks[role]) for role in roles)
        if count != teams.ranks.size or np.isnan(start[teams.ranks]).any():
            name = self.plan.launches[op.launch].name
            raise CommschedError(
                f"launch {name!r} exchanges among {teams.ranks.size} of {count} ranks; the"
                f" {self.plan.strategy!r} strategy exchanges among all"
            )
        found = self.exchanges.played(op, step, teams, start[teams.ranks], rest[teams.ranks])
        end, sent, left = np.zeros((3, len(start)))
        end[teams.ranks], sent[teams.ranks], left[teams.ranks] = found
        last = np.arange(len(start))
        saved = np.zeros(len(start))
        if self.waking:  # all ranks wait for a rank that sleeps
            lasts = end[teams.ranks] - start[teams.ranks].max(axis=1, keepdims=True)
            most = asleep[teams.ranks].max(axis=1, keepdims=True)
            lasts = np.maximum(lasts, 0.0)
            saved[teams.ranks] = self.waking.saved(lasts, self.waking.startup, most)
        rows = np.arange(len(teams.ranks))
        latest = teams.ranks[rows, start[teams.ranks].argmax(axis=1)]
        last[teams.ranks] = latest[:, np.newaxis]
        work = self.exchanges.own(op, step, teams)
        for role, own, begins in zip(roles, ops, starts, strict=True):
            ranks, clocks = self.ranks[role], self.clocks[role]
            key = role, step, own.name
            longer = work.late if self.plan.net.occupies_cores else 0.0  # beside computing
            begun = np.maximum(begins, start[last[ranks]]) if longer else begins
            ends = clocks.exchange(stream, begun, end[ranks] - saved[ranks], work.within, longer)
            begun = np.minimum(np.maximum(begins, start[last[ranks]]), ends)
            if work.late:
                since = clocks.free["compute"] if longer else begun
                ends = ends + work.late * self.sharing.beside_coding(key, ranks, since)
            taken = self.exchanges.work(work, teams, ends - begun)
            lasts = np.maximum(ends - begun, taken)
            demand = round(taken.sum() / lasts.sum() / GRAIN) * GRAIN if taken.any() else 0.0
            woken = asleep[ranks] * (machine.dispatch + cold)
            at_once = woken + handling_seconds(work.handled, lasts.max(), machine)
            ends = begun + self.sharing.seconds(key, stream, begun, lasts, demand, own=at_once)
            handled = handling_seconds(work.handled, (ends - begun).max(), machine)
            self.sharing.begun(role, begun, woken + handled)
            interrupts = self.exchanges.interrupts(teams, float(found.sent.mean()), ends - begun)
            self.sharing.interrupted(role, begun, ends, interrupts)
            clocks.free[stream] = ends
            self.idle[role, stream] = ends - left[ranks]
            self._note(role, step, own, PlacedAlone(begins, ends, sent[ranks], last[ranks]))


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
    `decisions` are the agreed numbers of a recorded run; without them the expected numbers count.
    Exchanges are played move by move while `moves` suffice; larger exchanges are priced by their
    closed form from the start of the last rank. `known` keeps played exchanges for other
    simulations of expected decisions on the same machine: starts then count to 10 ps. `changes`
    are other plans of the same tensors and roles, by their first step, before which all ranks
    wait for all. If tasks share cores, all operations are placed again, each with its seconds
    beside the others, until these seconds no longer change.
    """
    if steps < 1:
        raise CommschedError(f"steps must be at least 1, got {steps}")
    share = moves // (steps * max(len(plan.launches), 1))
    assert known is None or not decisions
    changes = {step: other for step, other in (changes or {}).items() if 0 < step < steps}
    assert known is None or not changes

    costs = ExchangeCosts(plan, decisions or {}, min(price.LIMIT, share), known)
    draws = Draws(kept=bool(plan.machine.cores))

    def placed(sharing: CoreSharing, progress: Progress | None) -> _Simulation:
        simulation = _Simulation(plan, decisions or {}, costs, sharing, draws)
        for step in range(steps):
            if step in changes:
                simulation.follow(changes[step], step)
            simulation.step(step)
            if progress is not None:
                progress(step)
        return simulation

    simulation = placed(CoreSharing(plan), progress)
    settling = Settling()
    for number in range(ROUNDS if simulation.sharing.tasks else 0):
        found, moved = simulation.sharing.slower(simulation.ranks)
        if moved < SETTLED and (number or not plan.machine.waking):
            break  # messages wait beside the coding of an earlier placement
        settling.go(found)
        simulation = placed(CoreSharing(plan, settling.slower, simulation.sharing), None)
    memory = simulation.strategy.memory(plan)
    return Prediction(
        plan=plan, steps=steps, placed=simulation.placed, memory=memory, changes=changes
    )
