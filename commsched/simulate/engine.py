"""Places every operation in time: streams are first in, first out; ranks are columns."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from commsched.cost import price
from commsched.errors import CommschedError
from commsched.kernels import random
from commsched.methods import Choice, Phase, phases_of
from commsched.methods.base import copy_seconds, gather_seconds
from commsched.plan import Plan
from commsched.program import Kind, Op, Role, is_exchange_stream
from commsched.simulate.crowd import Crowd, under_compute
from commsched.simulate.result import Placed, Prediction
from commsched.strategies import STRATEGIES

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Progress = Callable[[int], None]
MOVES = 2**26  # that one simulation plays, about a second
SAME = 1e-11  # s to which starts are equal where exchanges are kept

# An exchange and how its ranks start one after the other -> ends from the first start on, B sent.
Known = dict[tuple[object, ...], tuple[Floats, Floats]]


@dataclass(slots=True, eq=False)
class _Lane:
    """One stream of one role: its queue of operations and each rank's clock."""

    role: int
    stream: str
    queue: deque[tuple[int, Op]] = field(default_factory=deque)
    free: Floats = field(default_factory=lambda: np.zeros(0))


class _Simulation:
    """State of a run of the simulator."""

    def __init__(self, plan: Plan, decisions: Mapping[str, float], limit: int) -> None:
        self.plan = plan
        self.known: Known | None = None
        self.limit = limit
        self.decisions = decisions
        self.strategy = STRATEGIES[plan.strategy]
        self.placed: list[Placed] = []
        self.ends: dict[tuple[int, int, str], Floats] = {}  # (role, step, name) -> (ranks,)
        self.lanes: dict[tuple[int, str], _Lane] = {}
        self.ranks: list[Ints] = []
        self.crowds: list[Crowd] = []
        self.factor: list[Floats] = []

    def step(self, step: int) -> None:
        """Place all operations of one step."""
        program = self.strategy.lower(self.plan, step, self.decisions)
        if not self.ranks:
            self.ranks = [np.array(role.ranks, np.int64) for role in program.roles]
            self.crowds = [Crowd(self.plan.machine, ranks) for ranks in self.ranks]
        machine, seed = self.plan.machine, self.plan.seed
        self.factor = [random.jitter(machine.jitter, seed, step, r) for r in self.ranks]
        for index, role in enumerate(program.roles):
            self._queue(step, index, role)
            self.crowds[index].forget_before(
                min(lane.free.min() for lane in self.lanes.values() if lane.role == index)
            )
        self._place_all()

    def follow(self, plan: Plan, step: int) -> None:
        """Go on with another plan from a step on, once all that was placed has ended everywhere.

        The new launches' results of the step before are what the old ones have brought.
        """
        self.plan = plan
        over = max(float(placed.end.max()) for placed in self.placed)
        for lane in self.lanes.values():
            lane.free = np.full_like(lane.free, over)
        program = self.strategy.lower(plan, step - 1, self.decisions)
        for index, role in enumerate(program.roles):
            for op in role.ops:
                self.ends.setdefault((index, step - 1, op.name), np.full(len(role.ranks), over))

    def _queue(self, step: int, index: int, role: Role) -> None:
        for op in role.ops:
            key = (index, op.stream)
            if key not in self.lanes:
                lane = _Lane(index, op.stream, free=np.zeros(len(role.ranks)))
                self.lanes[key] = lane
            self.lanes[key].queue.append((step, op))

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
        inputs = [(lane.role, step - back, name) for name, back in op.after if step >= back]
        if any(key not in self.ends for key in inputs):
            return False
        start = lane.free
        for key in inputs:
            start = np.maximum(start, self.ends[key])
        end, sent = self._cost(op, step, lane, start)
        lane.queue.popleft()
        lane.free = end
        self.ends[lane.role, step, op.name] = end
        ranks = self.ranks[lane.role]
        self.placed.append(Placed(op, step, ranks, start, end, sent))
        return True

    def _cost(self, op: Op, step: int, lane: _Lane, start: Floats) -> tuple[Floats, Floats]:
        """End, (ranks,) s, and bytes handed to MPI, (ranks,)."""
        nothing = np.zeros(len(start))
        if op.kind in (Kind.COMPUTE, Kind.APPLY):
            return start + op.seconds * self.factor[lane.role], nothing
        if op.kind is Kind.DECIDE or is_exchange_stream(op.stream):
            return self._exchange(op, step, lane, start)
        phase, device = self._phase(op, step), self.plan.machine.device
        numel = self.plan.spec(self.plan.launches[op.launch]).numel
        if op.kind is Kind.ENCODE:
            gather = gather_seconds(numel)(device) if op.phase == 0 else 0.0
            end = start + (phase.take_seconds(device) + gather)
            return self.crowds[lane.role].coded(start, end), nothing
        last = op.phase == len(phases_of(self.plan, op.launch)) - 1
        scale = copy_seconds(4.0 * numel)(device) if last and self.plan.mean else 0.0
        end = start + (phase.give_seconds(device) + scale)
        return self.crowds[lane.role].coded(start, end), nothing

    def _phase(self, op: Op, step: int) -> Phase:
        """The phase of an operation; a choice takes the recorded decision, else the expected."""
        phase = phases_of(self.plan, op.launch)[op.phase]
        if isinstance(phase, Choice):
            launch = self.plan.launches[op.launch].name
            key = f"{step}/{launch}/{phase.name}/{Kind.DECIDE}"
            return phase.then(self.decisions.get(key, phase.expected))
        return phase

    def _exchange(self, op: Op, step: int, lane: _Lane, start: Floats) -> tuple[Floats, Floats]:
        launch = self.plan.launches[op.launch]
        machine, group = self.plan.machine, self.plan.group(launch)
        if group.size != len(start):
            raise CommschedError(
                f"launch {launch.name!r} exchanges among {group.size} of {len(start)} ranks; the"
                f" {self.plan.strategy!r} strategy exchanges among all"
            )
        rest = np.where(lane.free > 0.0, start - lane.free, np.inf)  # before the first one: long
        end, sent = self._played(op, step, start, rest)
        compute = self.lanes.get((lane.role, "compute"))
        if compute is not None:
            end = under_compute(start, end, compute.free, machine.overlap)
        if op.stream == "inside":
            end = self.crowds[lane.role].stretched(start, end)
        return end, sent

    def _played(self, op: Op, step: int, start: Floats, rest: Floats) -> tuple[Floats, Floats]:
        """End and bytes of an exchange by itself; what was played before is not played again.

        rest: (ranks,) s for which the stream's port has had nothing to do.
        """
        launch = self.plan.launches[op.launch]
        machine, group = self.plan.machine, self.plan.group(launch)
        rest = np.minimum(rest, machine.burst)
        key: tuple[object, ...] = ()
        if self.known is not None:
            first = start.min()
            apart = np.rint(np.stack([start - first, rest]) / SAME).astype(np.int64).tobytes()
            spec = self.plan.spec(launch)
            dense = all(law.law == "dense" for law, *_ in spec.pieces)
            content = spec.numel if dense else spec
            key = launch.method, content, op.phase, op.kind, self.limit, apart
            if key in self.known:
                after, sent = self.known[key]
                return first + after, sent
        later = op.phase > 0
        if op.kind is Kind.DECIDE:
            played = price.votes(machine, group, start, later)
        else:
            phase = self._phase(op, step)
            schedule, payload = phase.schedule, phase.payload
            played = price.exchange(
                schedule, payload, machine, group, start, later=later, limit=self.limit, rest=rest
            )
        if self.known is not None:
            self.known[key] = played.end - first, played.sent
        return played.end, played.sent


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
    then all ranks wait for all.
    """
    if steps < 1:
        raise CommschedError(f"steps must be at least 1, got {steps}")
    share = moves // (steps * max(len(plan.launches), 1))
    simulation = _Simulation(plan, decisions or {}, min(price.LIMIT, share))
    assert known is None or not decisions
    simulation.known = known
    changes = {step: other for step, other in (changes or {}).items() if 0 < step < steps}
    assert known is None or not changes
    for step in range(steps):
        if step in changes:
            simulation.follow(changes[step], step)
        simulation.step(step)
        if progress is not None:
            progress(step)
    memory = simulation.strategy.memory(plan)
    return Prediction(
        plan=plan, steps=steps, placed=simulation.placed, memory=memory, changes=changes
    )
