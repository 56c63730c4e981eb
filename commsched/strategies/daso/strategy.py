"""DASO: gradients are averaged in each node, parameters now and then between the nodes."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from commsched.errors import CommschedError
from commsched.exchange.method import chooses
from commsched.exchange.registry import phases_of
from commsched.plan.model import Launch, Param, Plan
from commsched.program.launch_ops import (
    OPTIMIZERS,
    apply_op,
    broadcast_ops,
    check_sums,
    exchange_ops,
    merge_op,
    send_ops,
)
from commsched.program.layer_ops import passes
from commsched.program.model import After, Kind, Op, Program, Role
from commsched.program.parameters import Options, Range
from commsched.program.registry import STRATEGIES
from commsched.program.strategy import Floats, Memory, State, Strategy
from commsched.strategies.daso.epochs import DECIDE, Epoch, EpochExchange, EpochStep, epoch_of

MANY = 2**31


class DasoPart(NamedTuple):
    """An exchange as one rank sees it."""

    purpose: str
    root: int  # place in the node of the rank that has the result
    mine: bool  # whether this rank is one of those
    waited: int  # see `Op.waited`

    @classmethod
    def of(cls, found: EpochExchange | None, lane: int) -> "DasoPart | None":
        """An exchange for the ranks with one place in their nodes."""
        if found is None:
            return None
        return cls(found.purpose, found.lane, found.lane == lane, found.waited)


class Daso(Strategy):
    """Train with gradients averaged in the node; average parameters across nodes in the background.

    The ranks with the same place in their nodes exchange a copy of their parameters, one place
    after the other; `wait` batches later each merges the sum with what it has by then,
        x := (2 S x + sum over nodes of x'(t - S)) / (2 S + N),  2 S -> 1 where S = 0,
    S = batches waited, N = nodes, and broadcasts it inside its node. So it is every `gs` batches in
    the epochs between; in the first `warmup` and the last `cooldown` epochs every batch is
    blocking, coded as `blocking` says, and so is the last batch of every epoch, uncoded. There the
    mean replaces the parameters. gs = 0 blocks always. `max_gs` and `patience` are the
    controller's, see `Plateau`.
    Source: Coquelin et al., "Accelerating neural network training with distributed asynchronous
    and selective optimization (DASO)", arXiv 2104.05588.
    """

    name = "daso"
    decides = "loss"
    defaults: Mapping[str, Param] = {
        "gs": 4,
        "wait": 1,
        "max_gs": 8,
        "patience": 2,
        "batches": 100,
        "epochs": 90,
        "warmup": 4,
        "cooldown": 4,
        "blocking": "bf16",
        "optimizer": "momentum",
    }
    allowed: Mapping[str, Options] = {
        "gs": Range(0, MANY),
        "wait": Range(0, MANY),
        "max_gs": Range(1, MANY),
        "patience": Range(0, MANY),
        "batches": Range(1, MANY),
        "epochs": Range(1, MANY),
        "warmup": Range(0, MANY),
        "cooldown": Range(0, MANY),
        "blocking": ("bf16", "dense"),
        "optimizer": tuple(OPTIMIZERS),
    }

    def lower(self, plan: Plan, step: int, decisions: Mapping[str, float]) -> Program:
        settings = self.settings(plan)
        lanes = plan.machine.everyone.lanes
        optimizer = str(settings["optimizer"])
        _check(plan, int(settings["gs"]), int(settings["wait"]))
        epoch = epoch_of(step, settings, lanes, decisions)
        now = epoch.at(step)
        before = self._before(step, epoch, settings, decisions)
        roles = tuple(
            Role(
                ranks=peers,
                ops=_ops(
                    plan,
                    optimizer,
                    DasoPart.of(now.starts, lane),
                    DasoPart.of(now.merges, lane),
                    DasoPart.of(before.merges, lane),
                    now.decides,
                ),
            )
            for lane, peers in enumerate(_peers(plan))
        )
        reach = max(int(settings["wait"]), int(settings["max_gs"]) // 4, 1)
        return Program(step=step, roles=roles, reach=reach)

    def _before(
        self,
        step: int,
        epoch: Epoch,
        settings: Mapping[str, Param],
        decisions: Mapping[str, float],
    ) -> EpochStep:
        """What the step before did."""
        if step == 0:
            return EpochStep(None, None, False)
        if step > epoch.first:
            return epoch.at(step - 1)
        return epoch_of(step - 1, settings, epoch.lanes, decisions).at(step - 1)

    def names(self, plan: Plan) -> tuple[str, ...]:
        optimizer = str(self.settings(plan)["optimizer"])
        found: dict[str, None] = {}
        for purpose, waited in (("blocking", -1), ("cycling", 0)):
            for mine in (True, False):
                part = DasoPart(purpose, 0, mine, waited)
                ops = _ops(plan, optimizer, part, part, None, purpose == "cycling")
                found |= dict.fromkeys(op.name for op in ops)
        return tuple(found)

    def merge(self, plan: Plan, op: Op, local: Floats, total: Floats, state: State) -> None:
        nodes = plan.machine.nodes
        if op.waited < 0:
            np.divide(total, np.float32(nodes), out=local)
            return
        weight = 2 * op.waited or 1
        local *= np.float32(weight)
        local += total
        local /= np.float32(weight + nodes)

    def memory(self, plan: Plan) -> Memory:
        words = OPTIMIZERS[str(self.settings(plan)["optimizer"])][0]
        numel = plan.graph.numel
        sizes = [(launch.purpose, plan.spec(launch).numel) for launch in plan.launches]
        merged = [size for purpose, size in sizes if purpose in ("blocking", "cycling")]
        return Memory(
            parameters=4.0 * numel,
            gradients=4.0 * numel,
            optimizer=float(words * numel),
            activations=sum(layer.activation for layer in plan.graph.layers),
            buckets=4.0 * (sum(size for _, size in sizes) + sum(merged)),
        )


@lru_cache(maxsize=16)
def _peers(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """The ranks with each place in their nodes."""
    return tuple(zip(*plan.machine.everyone.members, strict=True))


def _of(plan: Plan, purpose: str) -> list[int]:
    """The launches of a purpose, in their order."""
    rows = [i for i, launch in enumerate(plan.launches) if launch.purpose == purpose]
    return sorted(rows, key=lambda i: plan.launches[i].priority)


@lru_cache(maxsize=512)
def _ops(
    plan: Plan,
    optimizer: str,
    starts: DasoPart | None,
    merges: DasoPart | None,
    before: DasoPart | None,
    decides: bool,
) -> tuple[Op, ...]:
    """The operations of a rank's step. `before`: what was merged at the end of the last step."""
    ops = _training(plan, optimizer, before)
    updated = ops[-1].name
    sync: list[Op] = []
    if starts is not None and merges is not None and merges.waited <= 0:
        sync += _start(plan, starts, updated, ())  # it is merged in the same step
        sync += _merge(plan, merges, updated)
    else:
        if merges is not None:
            sync += _merge(plan, merges, updated)
        if starts is not None:
            sync += _start(plan, starts, updated, _merged(plan, merges, 0))
    if decides:
        after = (After(updated), *_merged(plan, merges, 0))
        sync.append(Op(kind=Kind.DECIDE, name=DECIDE, stream="between", after=after))
        end = "epoch/end"
        sync.append(Op(kind=Kind.APPLY, name=end, stream="compute", after=(After(DECIDE),)))
    return (*ops, *sync)


def _training(plan: Plan, optimizer: str, before: DasoPart | None) -> list[Op]:
    """Forward and backward, the gradients' average in the node, and the update at the end."""
    ops, updates = passes(plan, _merged(plan, before, 1)), []
    for i in _of(plan, ""):
        ops += exchange_ops(plan, i, After(f"backward/{plan.launches[i].after}"))
        updates.append(apply_op(plan, i, OPTIMIZERS[optimizer][1], After(ops[-1].name)))
    return ops + updates


def _start(plan: Plan, part: DasoPart, updated: str, merged: Iterable[After]) -> list[Op]:
    """Copy the parameters and begin to sum them over the nodes."""
    mine = _of(plan, part.purpose) if part.mine else []
    after = (After(updated), *merged)
    return [op for i in mine for op in send_ops(plan, i, after, part.root)]


def _merge(plan: Plan, part: DasoPart, updated: str) -> list[Op]:
    """Merge the sum where it is, and bring the result to the other ranks of the node."""
    mine = _of(plan, part.purpose) if part.mine else []
    ops = [merge_op(plan, i, part.waited, updated) for i in mine]
    if plan.machine.everyone.lanes > 1:
        for i in _of(plan, "spread"):
            ops += _spread(plan, i, part, updated)
    return ops


def _spread(plan: Plan, index: int, part: DasoPart, updated: str) -> list[Op]:
    """One launch of the broadcast inside the node."""
    there: After | None = None
    if part.mine:
        last = _last_of(plan, part.purpose, plan.launches[index])
        there = After(f"{last.name}/{Kind.MERGE}")
    return broadcast_ops(plan, index, part.root, there, After(updated))


def _last_of(plan: Plan, purpose: str, launch: Launch) -> Launch:
    """The last launch of a purpose that has a part of a launch's tensors."""
    tensors = {piece.tensor for piece in launch.pieces}
    rows = [plan.launches[i] for i in _of(plan, purpose)]
    return [row for row in rows if tensors & {piece.tensor for piece in row.pieces}][-1]


def _merged(plan: Plan, part: DasoPart | None, back: int) -> tuple[After, ...]:
    """The last operation of a merge on a rank; those before it are done by then."""
    if part is None:
        return ()
    if part.mine:
        return (After(f"{plan.launches[_of(plan, part.purpose)[-1]].name}/{Kind.MERGE}", back),)
    return (After(f"{plan.launches[_of(plan, 'spread')[-1]].name}/{Kind.DECODE}", back),)


@lru_cache(maxsize=64)
def _check(plan: Plan, skip: int, wait: int) -> None:
    """Refuse launches that mean something else."""
    if wait > skip > 0:
        raise CommschedError(
            f"strategy 'daso': wait cannot be {wait} with gs {skip}; an exchange is merged before"
            " the next one starts, so that at most gs is allowed"
        )
    wanted = {
        "": ("gradient", "node", 1, 0),
        "blocking": ("parameter", "peers", 1, 0),
        "cycling": ("parameter", "peers", max(skip, 1), wait),
        "spread": ("parameter", "node", max(skip, 1), wait),
    }
    for index, launch in enumerate(plan.launches):
        where = f"strategy 'daso': launch {launch.name!r}"
        if launch.purpose not in wanted:
            raise CommschedError(
                f"{where} has purpose {launch.purpose!r}; allowed: {', '.join(wanted)}"
            )
        found = (launch.payload, launch.among, launch.every, launch.lag)
        if found != wanted[launch.purpose]:
            words = "{}s among {!r} every {} steps, merged {} steps later"
            raise CommschedError(
                f"{where} exchanges {words.format(*found)}; of purpose {launch.purpose!r} are"
                f" {words.format(*wanted[launch.purpose])}"
            )
        if chooses(phases_of(plan, index)):
            raise CommschedError(
                f"{where} has method {launch.method!r}, which decides by the data, and nodes would"
                " decide differently; allowed: methods whose exchanges are fixed"
            )
        if launch.among == "peers":
            check_sums(plan, index, where)
        if (launch.purpose == "spread") != (launch.method == "broadcast"):
            raise CommschedError(f"{where}: method 'broadcast' is the one of purpose 'spread'")
    for purpose in wanted:
        if not _of(plan, purpose):
            raise CommschedError(f"strategy 'daso': no launch has purpose {purpose!r}")


STRATEGIES.add("daso")(Daso())
