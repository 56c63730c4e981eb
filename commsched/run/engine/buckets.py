"""A rank's buckets: their memory, and the actions of operations on them."""

from collections.abc import Callable, Mapping
from functools import partial
from math import inf, isfinite
from typing import Any, NamedTuple, Protocol

import numpy as np

from commsched.arrays import Array
from commsched.coding.codec import State
from commsched.errors import CommschedError, NotFiniteError
from commsched.exchange import rows
from commsched.exchange.endpoint import Endpoint, ReducingEndpoint, open_endpoint
from commsched.exchange.method import Choice, Phase
from commsched.exchange.registry import find_method, phases_of
from commsched.exchange.sharded import shard_of
from commsched.exchange.state import kept_of, restore
from commsched.exchange.vote import voting
from commsched.kernels.accumulate import ADD, put
from commsched.kernels.finite_check import finite
from commsched.kernels.hashing import index_sets
from commsched.kernels.merge import Listed
from commsched.kernels.modules import beside
from commsched.plan.model import Launch, Plan
from commsched.program.model import Kind, Op
from commsched.program.parts import (
    DELIVER,
    GATHER,
    GIVE,
    LEAVE,
    MEAN,
    MERGE,
    PUT,
    TAKE,
    VOTE,
    Part,
    parts_of,
)
from commsched.program.phases import phase_of
from commsched.program.registry import STRATEGIES
from commsched.run.engine.bucket_content import clamps, not_finite, takes_lists, unsent_of
from commsched.run.engine.device_queue import DeviceQueue
from commsched.run.engine.spare_memory import SpareMemory
from commsched.run.engine.watched_losses import WatchedLosses
from commsched.run.engine.worker import Roles, put_back
from commsched.run.job.clock import now
from commsched.run.wire.device import moved
from commsched.schedule.rounds import Goal
from commsched.timeline.names import decision_key

HOST = np.empty(0, np.float32)  # stands for any array in host memory
RECALLED = 64  # steps whose decisions are kept, unless a strategy needs older ones

Action = Callable[[int, Op], None]  # what one part of an operation does in a step


class Ready(NamedTuple):
    """An exchange on this rank that is prepared, under way or over."""

    phase: Phase
    held: Endpoint


class GradientObserver(Protocol):
    """An observer of gradients before they are encoded, and of their sums."""

    def sees(self, step: int, launch: int, values: Array | Listed, *, summed: bool) -> None:
        """Observe a bucket, (numel,) float32 or its non-zeros, without changing it."""


class Buckets:
    """This rank's buckets: their buffers, reused every step, and the exchanges under way."""

    def __init__(self, plan: Plan, rank: int, roles: Roles, device_queue: DeviceQueue) -> None:
        self._plan, self._rank = plan, rank
        self._worker, self._parameters, self._voter = roles
        self.device_queue = device_queue
        self._module = device_queue.device.module
        self.spare = SpareMemory(self._module)
        self._lent: dict[int, Array] = {}  # launch -> borrowed memory of its bucket
        self.states = [self._state(launch) for launch in plan.launches]
        self._sharded = _sharded(plan)
        self._together: State = {"rank": rank}  # state of decisions by all ranks (launch -1)
        self.losses = WatchedLosses()
        self.observer: GradientObserver | None = None
        self._ready: dict[int, Ready] = {}  # by launch
        self._endpoints: dict[tuple[int, Kind, int], Endpoint] = {}  # of exchanges' last steps
        self._local: dict[int, Array] = {}  # launch -> (numel,) float32, memory to merge in
        self._merged: dict[int, State] = {}  # launch -> state of its strategy between merges
        self._chosen: dict[tuple[int, int], Phase] = {}
        self.decisions: dict[str, float] = {}  # all decisions, if later steps depend on them
        self._recalls = STRATEGIES[plan.strategy].decides == "loss"
        self.rows_of: Callable[[int], dict[int, rows.RowsPart]] = lambda launch: {}  # of every step
        self._joined: set[int] = set()  # launches whose next gradients include the unsent remainder
        self.skips_overflow = False  # send a gradient that is not finite as zeros
        self.overflows: set[int] = set()  # steps with a gradient that is not finite
        self._known: dict[tuple[int, Kind, int, bool], list[Action]] = {}
        self._actions: dict[Part, Action] = {
            GATHER: self._gather,
            TAKE: self._take,
            VOTE: self._vote,
            GIVE: self._give,
            MEAN: self._mean,
            DELIVER: self._deliver,
            LEAVE: self._leave,
            PUT: self._put,
            MERGE: self._merge,
        }

    def _state(self, launch: Launch) -> State:
        """Make the state of a launch before the first step."""
        plan, rank = self._plan, self._rank
        mine = plan.group_of(launch, rank)
        group = plan.group(launch) if mine is None else mine
        member = group.ranks.index(rank) if mine is not None else -1
        here = mine is not None and not find_method(launch.method).sharded
        buffer = self._module.zeros(
            launch.numel if here else 0, np.float32
        )  # touches the pages now, not in the first step
        state = {"gradient": buffer, "rank": member, "ranks": group.size}
        return state | {"seed": plan.seed, "step": 0, "name": launch.name}

    def away(self, op: Op) -> bool:
        """Tell whether an operation exchanges device memory; votes are in host memory."""
        return op.kind is Kind.EXCHANGE and self._module is not np

    def _phase(self, op: Op) -> Phase:
        phase = phase_of(self._plan, op)
        return self._chosen[op.launch, op.phase] if isinstance(phase, Choice) else phase

    def code(self, step: int, op: Op) -> tuple[float, float]:
        """Encode or decode, once the device has computed the inputs; return start and end in s."""
        if self._module is np:
            begun = now()
            self.perform(step, op)
            return begun, now()
        self.device_queue.wait(step, op.after)
        start = self.device_queue.device.mark()
        self.perform(step, op)
        end = self.device_queue.device.mark()
        end.wait()
        return start.when(), end.when()

    def perform(self, step: int, op: Op) -> None:
        """Perform the parts of an operation on its bucket."""
        key = op.launch, op.kind, op.phase, op.alone
        if key not in self._known:
            self._known[key] = [self._actions[part] for part in parts_of(self._plan, op)]
        for action in self._known[key]:
            action(step, op)

    def _gather(self, step: int, op: Op) -> None:
        plan, launch, state = self._plan, op.launch, self.states[op.launch]
        state["step"] = step
        own = self._borrow(launch) if launch in self._sharded else None
        if plan.launches[launch].payload == "parameter":
            assert self._parameters is not None
            self._parameters.parameters(step, launch, state["gradient"])
        else:
            self._fill(step, launch)
        if plan.launches[launch].payload == "activation":
            return  # values that are not finite are found in the gradients
        held = state["list" if "list" in state else "gradient"]
        values = held.values if "list" in state else held if own is None else held[own]
        if not finite(values) or (self.skips_overflow and clamps(plan, launch, values)):
            if not self.skips_overflow:
                raise NotFiniteError(not_finite(plan, step, launch, state, own))
            self.overflows.add(step)
            values.fill(0)
        if self.observer is not None:
            self.observer.sees(step, launch, held, summed=False)
        self.losses.before(self._plan, launch, state)

    def _fill(self, step: int, launch: int) -> None:
        """Fill a bucket with gradients handed over as rows or arrays, and the unsent remainder."""
        plan, state = self._plan, self.states[launch]
        state.pop("list", None)
        parts: dict[int, rows.RowsPart] = state.pop("rows", None) or self.rows_of(launch)
        unsent = unsent_of(plan, launch, self.states)
        # The unsent remainder, which only one step has, is added to an array.
        listed = bool(parts) and takes_lists(plan, launch)
        listed = listed and not unsent and launch not in self._joined
        if not listed:
            rows.write(parts, state["gradient"])
        self._worker.gradient(step, launch, state["gradient"])
        for values in unsent:
            put(values, state["gradient"], ADD)
        if listed:
            places = [here for *_, here in plan.launches[launch].places]
            state["list"] = rows.as_list(parts, state["gradient"], places)
        self._joined.discard(launch)

    def _borrow(self, launch: int) -> slice:
        """Borrow the memory of a sharded launch's bucket; return the run that its worker fills."""
        planned, state = self._plan.launches[launch], self.states[launch]
        numel = self._plan.spec(planned).numel
        self._lent[launch] = memory = self.spare.borrow(numel)
        state["gradient"] = memory[:numel]
        if planned.payload == "gradient":
            return slice(None)
        return shard_of(self._plan, launch, self._rank)

    def _return(self, launch: int) -> None:
        """Return the memory that a launch has borrowed, if any."""
        if launch in self._lent:
            self.states[launch]["gradient"] = self._module.empty(0, np.float32)
            del self._endpoints[launch, Kind.ENCODE, 0]
            self.spare.give_back(self._lent.pop(launch))

    def _take(self, step: int, op: Op) -> None:
        self._open(op, self._phase(op), self.states[op.launch])

    def _open(self, op: Op, phase: Phase, state: State) -> None:
        key = op.launch, op.kind, op.phase
        held = self._endpoints[key] = open_endpoint(phase, state, self._endpoints.get(key))
        self._ready[op.launch] = Ready(phase, held)

    def exchange(self, step: int, op: Op) -> Ready:
        """Prepare the exchange of an operation of kind EXCHANGE or DECIDE."""
        if op.kind is Kind.DECIDE:
            if op.launch >= 0:  # the first phase reads arrays that the device has computed
                self.device_queue.wait(step, op.after)
            self.perform(step, op)
        elif op.root not in (None, self.states[op.launch]["rank"]):  # this rank only receives
            self._take(step, op)
        elif op.root is not None:  # encoded by the launch's own phase, sent by a broadcast's
            self._ready[op.launch] = Ready(self._phase(op), self._ready[op.launch].held)
        return self._ready[op.launch]

    def _vote(self, step: int, op: Op) -> None:
        if op.launch < 0:
            assert self._voter is not None
            said = self._voter.vote(step)
            voted = voting(self._plan.machine.everyone, lambda state: said)
            self._open(op, voted, self._together)
            return
        choice = phases_of(self._plan, op.launch)[op.phase]
        assert isinstance(choice, Choice)
        group = self._plan.group(self._plan.launches[op.launch])
        self._open(op, voting(group, choice.vote), self.states[op.launch])

    def decide(self, step: int, op: Op) -> float:
        """Reduce the gathered votes to a decision and choose the phase; inf: a vote is not finite.

        A decision of all ranks is the mean of their votes.
        """
        state = self.states[op.launch] if op.launch >= 0 else self._together
        phase, held = self._ready.pop(op.launch)
        phase.give(state, held.result())
        votes = state.pop("votes")
        value = sum(votes) / len(votes)
        if op.launch >= 0:
            choice = phases_of(self._plan, op.launch)[op.phase]
            assert isinstance(choice, Choice)
            value = choice.agreed(votes)
            self._chosen[op.launch, op.phase] = choice.then(value)
        self.decisions[decision_key(step, op.name)] = value
        if not self._recalls:
            self.decisions.pop(decision_key(step - RECALLED, op.name), None)
        return value if isfinite(value) else inf

    def _give(self, step: int, op: Op) -> None:
        phase, held = self._ready.pop(op.launch)
        phase.give(self.states[op.launch], held.result())

    def _mean(self, step: int, op: Op) -> None:
        state = self.states[op.launch]
        if "list" in state:
            index, values = state["list"]
            state["list"] = Listed(index, values / np.float32(state["ranks"]))
        else:
            state["result"] /= np.float32(state["ranks"])

    def _deliver(self, step: int, op: Op) -> None:
        state = self.states[op.launch]
        self.losses.after(step, op.launch, state)
        total = state["list" if "list" in state else "result"]
        if self.observer is not None:
            self.observer.sees(step, op.launch, total, summed=True)
        self._worker.result(step, op.launch, total)
        self._return(op.launch)

    def _leave(self, step: int, op: Op) -> None:
        state = self.states[op.launch]
        total = state["list" if "list" in state else "gradient"]
        self._worker.result(step, op.launch, total)
        self._return(op.launch)

    def _put(self, step: int, op: Op) -> None:
        assert self._parameters is not None
        self._parameters.replace(step, op.launch, self.states[op.launch]["result"])
        self._return(op.launch)

    def _merge(self, step: int, op: Op) -> None:
        """Merge a launch's sum, (numel,) float32, into the current parameters."""
        total = self.states[op.launch]["result"]
        if op.launch not in self._local:
            self._local[op.launch] = np.empty_like(total)
        local, state = self._local[op.launch], self._merged.setdefault(op.launch, {})
        assert self._parameters is not None
        self._parameters.parameters(step, op.launch, local)
        STRATEGIES[self._plan.strategy].merge(self._plan, op, local, total, state)
        self._parameters.replace(step, op.launch, local)

    def kept(self) -> dict[str, dict[str, Any]]:
        """Return the content of a checkpoint, with copies of arrays in host memory.

        No exchange may be under way, but sums may wait for their merge.
        """
        names = [launch.name for launch in self._plan.launches]
        kept: dict[str, dict[str, Any]] = {
            "buckets": {n: kept_of(s) for n, s in zip(names, self.states, strict=True)},
            "unmerged": {names[i]: ready.held.result() for i, ready in self._unmerged().items()},
            "merged": {names[i]: state for i, state in self._merged.items()},
            "decisions": dict(self.decisions) if self._recalls else {},
        }
        return {key: moved(part, partial(_copied, like=HOST)) for key, part in kept.items()}

    def _unmerged(self) -> dict[int, Ready]:
        """Return the sums of parameters that wait for their merge, by launch."""
        return {
            index: ready
            for index, ready in self._ready.items()
            if index >= 0
            and self._plan.launches[index].payload == "parameter"
            and ready.phase.schedule.goal is Goal.ALL_REDUCE
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Restore what `kept` returned; reject anything else.

        Its "carried" lists the launches to whose next gradients the source adds the unsent part.
        """
        launches = self._plan.launches
        index = {launch.name: i for i, launch in enumerate(launches)}
        parts = [kept.get(key) for key in ("buckets", "unmerged", "merged", "decisions")]
        if not all(isinstance(part, dict) for part in parts) or list(parts[0] or {}) != list(index):
            raise CommschedError("the checkpoint holds other buckets than this plan")
        for state, own in zip(self.states, kept["buckets"].values(), strict=True):
            restore(state, moved(own, partial(_copied, like=state["gradient"])))
        for name, total in kept["unmerged"].items():
            state, phase = self.states[index[name]], phases_of(self._plan, index[name])[0]
            assert isinstance(phase, Phase)
            state["gradient"][:] = beside(total, state["gradient"])
            held = ReducingEndpoint(state["gradient"], phase.payload, state, None)
            self._ready[index[name]] = Ready(phase, held)
        self._merged = {
            i: moved(kept["merged"][name], partial(_copied, like=self.states[i]["gradient"]))
            for name, i in index.items()
            if name in kept["merged"]
        }
        self.decisions.update(kept["decisions"])
        self._joined = {i for name, i in index.items() if name in kept.get("carried", ())}

    def close(self) -> None:
        """Free the index sets that all buckets share; no exchange may be under way."""
        index_sets.cache_clear()

    def follow(self, plan: Plan) -> dict[str, Array]:
        """Continue with another plan of these tensors; no exchange may be under way.

        Launches with equal pieces and method keep their state. Return the unsent gradients of the
        other launches, (numel,) float32 per tensor.
        """
        known = {}
        waiting = {p.tensor for i in self._joined for p in self._plan.launches[i].pieces}
        for launch, state in zip(self._plan.launches, self.states, strict=True):
            known[launch.pieces, launch.method, launch.group] = launch, state
        self._plan, self.states, self._sharded = plan, [], _sharded(plan)
        for launch in plan.launches:
            old = known.pop((launch.pieces, launch.method, launch.group), None)
            self.states.append(self._state(launch) if old is None else old[1])
            self.states[-1]["name"] = launch.name
        self.close()
        self.device_queue.device.mark().wait()  # new states were made in the caller's stream
        self._chosen.clear()
        self._known.clear()
        self._endpoints.clear()
        found: dict[str, Array] = {}
        for launch, state in known.values():
            if "lost" in state and find_method(launch.method).keeps:
                put_back(plan, launch, state["lost"], found)
        waiting.update(found)
        self._joined = {
            i
            for i, launch in enumerate(plan.launches)
            if any(piece.tensor in waiting for piece in launch.pieces)
        }
        return found


def _copied(values: Array, like: Array) -> Array:
    """Copy values into the memory of another array."""
    return found.copy() if (found := beside(values, like)) is values else found


def _sharded(plan: Plan) -> set[int]:
    """Return the launches in which a rank fills or receives only its shard."""
    return {i for i, x in enumerate(plan.launches) if find_method(x.method).sharded}
