"""Synchronous data parallelism: every gradient is summed over all ranks before it is applied."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from commsched.errors import CommschedError
from commsched.plan.model import Launch, Param, Plan
from commsched.program.launch_ops import (
    OPTIMIZER,
    apply_op,
    broadcast_ops,
    check_can_leave,
    exchange_ops,
    replica_memory,
    update_traffic,
)
from commsched.program.layer_ops import backward_of, compute
from commsched.program.model import After, Kind, Op, Program, Role, by_name
from commsched.program.parameters import Parameter, Range
from commsched.program.registry import STRATEGIES
from commsched.program.strategy import Memory, Strategy

ROOT = 0  # the rank whose parameters are broadcast
REFRESH = "refresh"  # purpose of the launches that broadcast
DATA, UPDATE = "data", "optimizer"  # as a PyTorch training names its spans


class SyncStep(NamedTuple):
    """The parts of a step that differ from step to step."""

    since: int  # first step of the launches in use
    late: int | None  # first step of the launches whose last results are applied in this step
    early: bool  # this step's own results are applied at its end
    refreshed: bool  # parameters were broadcast at the end of the step before
    refreshes: bool  # parameters are broadcast at its end


class Synchronous(Strategy):
    """Forward, backward, an exchange per bucket once it is ready, apply.

    overlap "backward": all buckets are applied at the end of the step; if the net states `apply`,
    they are put back then, and one update follows the last, as in PyTorch. "forward": a bucket is
    applied just before the first layer of the next step that reads it, so that late exchanges
    hide under the next forward pass (Peng et al., "ByteScheduler", SOSP 2019).

    encode "apart": a separate thread gathers and encodes buckets, also during exchanges.
    "communication": the communication thread does so before each exchange; nothing is handed
    over, but the next bucket waits for the exchange. Buckets of at most `together` bytes are
    encoded, exchanged and decoded by the communication thread, wherever others are encoded.

    Launches that begin later replace the earlier launches from that step on, so that codecs follow
    a schedule. They take over the gradients that the earlier launches have not sent yet. Launches
    of purpose "refresh" broadcast the parameters of rank 0 at the end of every `every` steps; a
    plan that has them applies all buckets at the end of the step. Source of later launches and of
    refreshes: Wang et al., "FFT-based gradient sparsification", HPDC 2020.
    """

    name = "sync"
    changes = True
    sums_every_step = verifiable = exact = True
    parameters: Mapping[str, Parameter] = {
        "overlap": Parameter("forward", ("backward", "forward"), learns=False),
        "optimizer": OPTIMIZER,
        "encode": Parameter("apart", ("apart", "communication"), learns=False),
        "together": Parameter(0, Range(0, 2**53), learns=False),
    }

    def lower(self, plan: Plan, step: int, decisions: Mapping[str, float]) -> Program:
        settings = self.settings(plan)
        _check(plan)
        now = _now(plan, settings["overlap"] == "forward", step)
        optimizer = settings["optimizer"]
        ranks = plan.machine.everyone.ranks
        # If one rank broadcasts, it has a role of its own in every step.
        apart = (ranks[:1], ranks[1:]) if _refreshing(plan) and len(ranks) > 1 else (ranks,)
        roles = (Role(ranks=some, ops=_ops(plan, optimizer, now, ROOT in some)) for some in apart)
        return Program(step=step, roles=tuple(roles))

    def operations(self, plan: Plan) -> dict[str, Op]:
        every = plan.launches[_refreshing(plan)[0]].every if _refreshing(plan) else 1
        steps = {begin + more for begin in _begins(plan) for more in (0, 1)} | {every - 1}
        roles = (role for step in sorted(steps) for role in self.lower(plan, step, {}).roles)
        return by_name(op for role in roles for op in role.ops)

    def memory(self, plan: Plan) -> Memory:
        begins = _begins(plan)
        buckets = plan.net.numel * (len(begins) + bool(_refreshing(plan)))
        used = (i for begin in begins for i in _summing(plan, begin))
        return replica_memory(plan, self.settings(plan)["optimizer"], buckets, used)


@lru_cache(maxsize=16)
def _begins(plan: Plan) -> tuple[int, ...]:
    """Return the steps at which the launches in use change, ascending."""
    return tuple(sorted({0, *(x.since for x in plan.launches if x.purpose != REFRESH)}))


@lru_cache(maxsize=16)
def _refreshing(plan: Plan) -> tuple[int, ...]:
    """Return the launches that broadcast parameters."""
    return tuple(i for i, launch in enumerate(plan.launches) if launch.purpose == REFRESH)


def _summing(plan: Plan, since: int) -> list[int]:
    """Return the launches of gradients that begin at a step."""
    return [i for i, x in enumerate(plan.launches) if x.since == since and x.purpose != REFRESH]


def _now(plan: Plan, late: bool, step: int) -> SyncStep:
    """Return what a step does; with `late` the next step applies results."""
    refreshing = _refreshing(plan)
    every = plan.launches[refreshing[0]].every if refreshing and plan.machine.size > 1 else 0
    late = late and not every  # otherwise a step that broadcasts would apply a bucket twice
    refreshed, refreshes = (every > 0 and n > 0 and n % every == 0 for n in (step, step + 1))
    begins = _begins(plan)
    since, before = (max(b for b in begins if b <= max(n, 0)) for n in (step, step - 1))
    return SyncStep(
        since=since,
        late=before if late and step > 0 else None,
        early=not late,
        refreshed=refreshed,
        refreshes=refreshes,
    )


@lru_cache(maxsize=64)
def _ops(plan: Plan, optimizer: Param, now: SyncStep, root: bool) -> tuple[Op, ...]:
    """Build the operations of a step, cached objects for every step of its kind.

    `root`: the role belongs to the rank whose parameters are broadcast.
    """
    ops: list[Op] = []
    # buckets not yet applied in this pass
    waiting = [] if now.late is None else _summing(plan, now.late)
    home = {t.name: layer.name for layer in plan.net.layers for t in layer.tensors}
    readers = [{home[piece.tensor] for piece in launch.pieces} for launch in plan.launches]
    after: tuple[After, ...] = ()
    if now.refreshed and not root:
        after = (After(_refresh(plan, root, None)[-1].name, 1),)
    apart = now.early and plan.net.apply is not None
    if apart and plan.net.data:
        ops.append(_own(DATA, plan.net.data, after))
        after = ()
    for layer in plan.net.layers:
        used = [i for i in waiting if layer.name in readers[i]]
        waiting = [i for i in waiting if i not in used]
        ops += [_apply(plan, i, optimizer, steps_back=1) for i in used]
        forward = compute(plan, layer, False, after)
        first = apart and layer is plan.net.layers[0]
        loading = plan.net.data * first
        ops.append(replace(forward, seconds=forward.seconds - loading) if loading else forward)
        after = ()
    for layer in reversed(plan.net.layers):
        ops.append(compute(plan, layer, True))
    summed = _summing(plan, now.since)
    for i in sorted(summed, key=lambda i: plan.launches[i].priority):
        ops += _exchange(plan, i)
    if now.early:
        ops += _applied(plan, [_apply(plan, i, optimizer, steps_back=0) for i in summed])
    if now.refreshes:
        ops += _refresh(plan, root, ops[-1])
    return tuple(ops)


def _refresh(plan: Plan, root: bool, last: Op | None) -> list[Op]:
    """Broadcast all parameters after the last operation of the compute stream."""
    updated = After(last.name if last else "")
    ops: list[Op] = []
    for i in _refreshing(plan):
        ops += broadcast_ops(plan, i, ROOT, updated if root else None, updated)
    return ops


@lru_cache(maxsize=16)
def _check(plan: Plan) -> None:
    """Refuse launches that this strategy cannot follow."""
    everyone = list(plan.machine.everyone.ranks)
    for launch in plan.launches:
        if launch.group and sorted(launch.group) != everyone:
            what = f"among {len(launch.group)} of {len(everyone)} ranks"
        elif launch.among != "all":
            what = f"among {launch.among!r}"
        elif launch.purpose == REFRESH:
            _check_refresh(plan, launch)
            continue
        elif launch.purpose:
            what = f"for purpose {launch.purpose!r}"
        elif launch.payload != "gradient":
            what = f"{launch.payload}s"
        elif launch.every != 1 or launch.lag != 0:
            what = f"every {launch.every} steps, merged {launch.lag} steps later"
        else:
            continue
        raise CommschedError(
            f"launch {launch.name!r} exchanges {what}; strategy 'sync' exchanges gradients among"
            " all ranks in every step"
        )
    _check_later(plan)


def _check_refresh(plan: Plan, launch: Launch) -> None:
    """Refuse a refresh that is not a broadcast of parameters at the steps of all refreshes."""
    first = plan.launches[_refreshing(plan)[0]]
    found = (launch.payload, launch.method, launch.every, launch.lag, launch.since)
    wanted = ("parameter", "broadcast", first.every, 0, 0)
    if found != wanted:
        words = "{}s by {!r} every {} steps, merged {} later, from step {} on"
        raise CommschedError(
            f"launch {launch.name!r} exchanges {words.format(*found)}; purpose {REFRESH!r} needs"
            f" {words.format(*wanted)}"
        )


def _check_later(plan: Plan) -> None:
    """Refuse later launches of other buckets, and later launches together with an error budget."""
    first, *later = every = [[plan.launches[i] for i in _summing(plan, b)] for b in _begins(plan)]
    buckets = {launch.pieces for launch in first}
    for launch in (launch for some in later for launch in some):
        if launch.pieces not in buckets:
            raise CommschedError(
                f"launch {launch.name!r} begins at step {launch.since} with pieces of no earlier"
                " launch; allowed: equal buckets with other methods"
            )
    check_can_leave(chain(*every[:-1]), "--later", "leave out --later")
    if later and plan.max_error:
        raise CommschedError(
            "--max-error cannot be combined with launches that begin later (--later); leave one out"
        )


def _apply(plan: Plan, index: int, optimizer: Param, steps_back: int) -> Op:
    after = After(_exchange(plan, index)[-1].name, steps_back)
    return apply_op(plan, index, update_traffic(optimizer), after)


def _applied(plan: Plan, apply: list[Op]) -> list[Op]:
    """Apply bucket by bucket, or put the buckets back and update everything at once."""
    whole = sum(op.seconds for op in apply)
    if plan.net.apply is None or not whole:
        return apply
    share = plan.net.apply / whole
    put = [replace(op, seconds=op.seconds * share) for op in apply]
    return [*put, _own(UPDATE, whole - plan.net.apply, (After(put[-1].name),))]


def _own(name: str, seconds: float, after: tuple[After, ...]) -> Op:
    """Build a computation that belongs to no layer."""
    return Op(kind=Kind.COMPUTE, name=name, stream="compute", after=after, seconds=seconds)


def _exchange(plan: Plan, index: int) -> list[Op]:
    launch = plan.launches[index]
    return exchange_ops(plan, index, backward_of(launch.after), own=_own_stream(plan, launch))


def _own_stream(plan: Plan, launch: Launch) -> tuple[Kind, ...]:
    """Return the kinds of operations that the communication thread does for a launch."""
    encode, together = _threads(plan)
    if 4 * sum(stop - start for _, start, stop in launch.pieces) <= together:
        return Kind.ENCODE, Kind.DECODE
    return (Kind.ENCODE,) if encode == "communication" else ()


@lru_cache(maxsize=16)
def _threads(plan: Plan) -> tuple[Param, int]:
    settings = STRATEGIES[plan.strategy].settings(plan)
    return settings["encode"], int(settings["together"])


STRATEGIES.add("sync")(Synchronous())
