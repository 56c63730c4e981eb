"""The coding streams of a rank: gather a bucket and start its exchange, take its result."""

from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from commsched.codecs import Array, State
from commsched.errors import CommschedError
from commsched.kernels.finite import finite
from commsched.methods import Choice, Held, Phase, hold, phases_of
from commsched.methods.direct import route
from commsched.methods.held import Gathered
from commsched.plan import Plan
from commsched.program import Kind, Op
from commsched.run.lockstep import AGREE
from commsched.run.worker import Worker
from commsched.schedule import Schedule


class Ready(NamedTuple):
    """An exchange that can start."""

    schedule: Schedule
    held: Held


class Buckets:
    """This rank's buckets: their buffers, reused every step, and the exchanges under way."""

    def __init__(self, plan: Plan, rank: int, worker: Worker) -> None:
        self._plan = plan
        self._worker = worker
        self.states: list[State] = []
        for launch in plan.launches:
            group = plan.group(launch)
            member = group.ranks.index(rank) if rank in group.ranks else -1
            numel = sum(stop - start for _, start, stop in launch.pieces)
            buffer = np.zeros(numel, np.float32)  # touched now, not inside the first step
            state = {"gradient": buffer, "rank": member, "ranks": group.size}
            self.states.append(state | {"seed": plan.seed, "step": 0, "name": launch.name})
        self._held: dict[int, Held] = {}
        self._chosen: dict[tuple[int, int], Phase] = {}
        self.decisions: dict[str, float] = {}

    def _phase(self, op: Op) -> Phase:
        phase = phases_of(self._plan, op.launch)[op.phase]
        return self._chosen[op.launch, op.phase] if isinstance(phase, Choice) else phase

    def encode(self, step: int, op: Op) -> None:
        """Gather the launch's gradient where its first phase begins, and run the phase's take."""
        if op.phase == 0:
            self._gather(step, op.launch)
        self._held[op.launch] = hold(self._phase(op), self.states[op.launch])

    def _gather(self, step: int, launch: int) -> None:
        state = self.states[launch]
        state["step"] = step
        self._worker.gradient(step, launch, state["gradient"])
        if not finite(state["gradient"]):
            raise CommschedError(self._broken(step, launch))

    def _broken(self, step: int, launch: int) -> str:
        """Which tensor's gradient is not finite: here a codec has not dropped or hidden it yet."""
        values = self.states[launch]["gradient"]
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        pieces = self._plan.launches[launch].pieces
        ends = np.cumsum([stop - start for _, start, stop in pieces])
        name, _, stop = pieces[int(np.searchsorted(ends, at, side="right"))]
        place = stop - int(ends[ends > at][0]) + at
        return (
            f"step {step}: the gradient of tensor {name!r} has {values[at]} at element {place};"
            " only finite numbers can be summed"
        )

    def exchange(self, step: int, op: Op) -> Ready:
        """What to exchange for an Exchange or a Decide."""
        if op.kind is Kind.EXCHANGE:
            return Ready(self._phase(op).schedule, self._held[op.launch])
        choice = phases_of(self._plan, op.launch)[op.phase]
        assert isinstance(choice, Choice)
        if op.phase == 0:
            self._gather(step, op.launch)  # no encode comes before, and the vote reads it
        state = self.states[op.launch]
        vote = np.array([choice.vote(state)], np.float64).view(np.uint8)
        group = self._plan.group(self._plan.launches[op.launch])
        held = Gathered({int(state["rank"]): vote}, list(range(group.size)))
        self._held[op.launch] = held
        return Ready(route("all-gather", group), held)

    def decide(self, step: int, op: Op) -> float:
        """Take the votes that a Decide gathered, in rank order, and choose the phase."""
        choice = phases_of(self._plan, op.launch)[op.phase]
        assert isinstance(choice, Choice)
        votes = [float(v.view(np.float64)[0]) for v in self._held.pop(op.launch).result()]
        value = float(AGREE[choice.agree](votes))
        self._chosen[op.launch, op.phase] = choice.then(value)
        self.decisions[f"{step}/{op.name}"] = value
        return value

    def decode(self, step: int, op: Op) -> None:
        """Run the phase's give; after the last one the worker gets the sum or mean."""
        state = self.states[op.launch]
        self._phase(op).give(state, self._held.pop(op.launch).result())
        if op.phase == len(phases_of(self._plan, op.launch)) - 1:
            result: Array = state["result"]
            if self._plan.mean and state["ranks"] > 1:
                result /= np.float32(state["ranks"])
            self._worker.result(step, op.launch, result)


def communicators(
    plan: Plan, comm: MPI.Intracomm
) -> dict[tuple[str, tuple[int, ...]], MPI.Intracomm]:
    """One communicator per exchange stream and group of ranks; the same order on every rank."""
    found: dict[tuple[str, tuple[int, ...]], MPI.Intracomm] = {}
    for launch in plan.launches:
        key = (launch.stream, launch.group)
        if key not in found:
            ranks = plan.group(launch).ranks
            mine = comm.rank in ranks
            color = 0 if mine else MPI.UNDEFINED
            split = comm.Split(color, ranks.index(comm.rank) if mine else 0)
            assert isinstance(split, MPI.Intracomm)
            found[key] = split
    return found
