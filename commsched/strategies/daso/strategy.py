"""DASO: gradients are averaged in each node, parameters less often between the nodes."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from commsched.errors import CommschedError
from commsched.plan.model import Launch, Param, Plan
from commsched.program.launch_ops import (
    OPTIMIZER,
    Rule,
    apply_op,
    broadcast_ops,
    check_rules,
    check_sums,
    check_teams_alike,
    end_of,
    exchange_ops,
    in_order,
    merge_op,
    own_op,
    replica_memory,
    send_ops,
    update_traffic,
)
from commsched.program.layer_ops import backward_of, passes
from commsched.program.model import After, Kind, Op, Program, Role, by_name
from commsched.program.parameters import Parameter, Range
from commsched.program.registry import STRATEGIES
from commsched.program.strategy import Floats, Memory, State, Strategy
from commsched.strategies.daso.epochs import DECIDE, Epoch, EpochExchange, EpochStep, epoch_of

MANY = 2**31


class DasoPart(NamedTuple):
    """One rank's part in an exchange."""

    purpose: str
    root: int  # place in the node of the rank that has the result
    mine: bool  # whether this rank takes part
    waited: int | None  # see `Op.waited`

    @classmethod
    def of(cls, found: EpochExchange | None, lane: int) -> "DasoPart | None":
        """Make an exchange for the ranks with one place in their nodes."""
        if found is None:
            return None
        return cls(found.purpose, found.lane, found.lane == lane, found.waited)


class Daso(Strategy):
    """Train with gradients averaged in the node; average parameters across nodes in the background.

    The ranks with the same place in their nodes exchange a copy of their parameters, one place
    after the other. `wait` batches later each rank merges the sum with its parameters x,
        x := (2 S x + sum over nodes of x'(t - S)) / (2 S + N),  2 S -> 1 where S = 0,
    S = batches waited, N = nodes, and broadcasts the result inside its node.
    Between warm-up and cool-down, ranks exchange every `gs` batches without blocking. Every batch
    of the first `warmup` and last `cooldown` epochs blocks and uses the codec `blocking`; so does
    the last batch of each epoch, uncompressed. After a blocking exchange the mean replaces the
    parameters. With gs = 0 every batch blocks. `max_gs` and `patience`: see `Plateau`. With
    `local_skip` = s > 1, gradients are averaged in the node on every s-th batch, and on those that
    start an exchange, wait for its merge or end an epoch; on others each rank follows its own. The
    published code begins with 1, which `Plateau` changes; the paper averages always: 0.
    Source: Coquelin et al., "Accelerating neural network training with distributed asynchronous
    and selective optimization (DASO)", arXiv 2104.05588.
    """

    name = "daso"
    averages = True
    decides = "loss"
    parameters: Mapping[str, Parameter] = {
        "gs": Parameter(4, Range(0, MANY), (2, 4, 8)),
        "wait": Parameter(1, Range(0, MANY)),
        "local_skip": Parameter(0, Range(0, MANY)),
        "max_gs": Parameter(8, Range(1, MANY)),
        "patience": Parameter(2, Range(0, MANY)),
        # The length of a training, which a plan cannot know.
        "batches": Parameter(100, Range(1, MANY), learns=False),
        "epochs": Parameter(90, Range(1, MANY), learns=False),
        "warmup": Parameter(4, Range(0, MANY), learns=False),
        "cooldown": Parameter(4, Range(0, MANY), learns=False),
        "blocking": Parameter("bf16", ("bf16", "dense")),
        "optimizer": OPTIMIZER,
    }

    def lower(self, plan: Plan, step: int, decisions: Mapping[str, float]) -> Program:
        settings = self.settings(plan)
        lanes = plan.machine.everyone.lanes
        optimizer = settings["optimizer"]
        _check(plan, int(settings["gs"]), int(settings["wait"]), int(settings["local_skip"]))
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
                    now.averages,
                ),
            )
            for lane, peers in enumerate(_peers(plan))
        )
        reach = max(int(settings["wait"]), int(settings["max_gs"]) // 4, 1)
        return Program(step=step, roles=roles, reach=reach)

    def periods(self, plan: Plan) -> tuple[tuple[float, Plan], ...]:
        settings = self.settings(plan)
        epochs, ends = int(settings["epochs"]), int(settings["warmup"]) + int(settings["cooldown"])
        share = min(ends / epochs, 1.0)
        blocking = replace(plan, params={**plan.params, "warmup": epochs})
        cycling = replace(plan, params={**plan.params, "warmup": 0, "cooldown": 0})
        found = ((share, blocking), (1.0 - share, cycling))
        return tuple(period for period in found if period[0] > 0.0)

    def _before(
        self,
        step: int,
        epoch: Epoch,
        settings: Mapping[str, Param],
        decisions: Mapping[str, float],
    ) -> EpochStep:
        """Return the agreements and exchanges of the step before."""
        if step == 0:
            return EpochStep(None, None, False, True)
        if step > epoch.first:
            return epoch.at(step - 1)
        return epoch_of(step - 1, settings, epoch.lanes, decisions).at(step - 1)

    def operations(self, plan: Plan) -> dict[str, Op]:
        optimizer = self.settings(plan)["optimizer"]
        parts = [
            DasoPart(purpose, 0, mine, waited)
            for purpose, waited in (("blocking", None), ("cycling", 0))
            for mine in (True, False)
        ]
        steps = [_ops(plan, optimizer, p, p, None, p.purpose == "cycling", True) for p in parts]
        return by_name(op for ops in steps for op in ops)

    def merge(self, plan: Plan, op: Op, local: Floats, total: Floats, state: State) -> None:
        nodes = plan.machine.nodes
        if op.waited is None:
            np.divide(total, np.float32(nodes), out=local)
            return
        weight = 2 * op.waited or 1
        local *= np.float32(weight)
        local += total
        local /= np.float32(weight + nodes)

    def memory(self, plan: Plan) -> Memory:
        sizes = [(launch.purpose, plan.spec(launch).numel) for launch in plan.launches]
        merged = [size for purpose, size in sizes if purpose in ("blocking", "cycling")]
        buckets = sum(size for _, size in sizes) + sum(merged)
        # Averages come one after the other, and those of a cycle last longest.
        used = (i for purpose in ("", "cycling") for i in in_order(plan, purpose))
        return replica_memory(plan, self.settings(plan)["optimizer"], buckets, used)


@lru_cache(maxsize=16)
def _peers(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Return the ranks with each place in their nodes."""
    return tuple(zip(*plan.machine.everyone.members, strict=True))


@lru_cache(maxsize=512)
def _ops(
    plan: Plan,
    optimizer: Param,
    starts: DasoPart | None,
    merges: DasoPart | None,
    before: DasoPart | None,
    decides: bool,
    averages: bool,
) -> tuple[Op, ...]:
    """Build the operations of a rank's step; before: the exchange merged at the last step's end."""
    ops = _training(plan, optimizer, before, averages)
    updated = After(ops[-1].name)
    merging = _merge(plan, merges, updated) if merges else []
    if starts and merges and not merges.waited:  # an exchange that is merged in the same step
        ops += _start(plan, starts, updated) + merging
    else:
        ops += merging
        ops += _start(plan, starts, updated, *_merged(plan, merges, 0)) if starts else []
    if decides:
        after = (updated, *_merged(plan, merges, 0))
        ops.append(Op(kind=Kind.DECIDE, name=DECIDE, stream="between", after=after))
        end = (After(DECIDE),)
        ops.append(Op(kind=Kind.APPLY, name="epoch/end", stream="compute", after=end))
    return tuple(ops)


def _training(plan: Plan, optimizer: Param, before: DasoPart | None, averages: bool) -> list[Op]:
    """Build forward, backward, the gradients' average in the node if it is due, and the update."""
    ops, updates = passes(plan, _merged(plan, before, 1)), []
    copied = _copied(plan, before, 1)
    for i in in_order(plan, ""):
        there = backward_of(plan.launches[i].after)
        ops += exchange_ops(plan, i, there) if averages else [own_op(plan, i, there)]
        updates.append(apply_op(plan, i, update_traffic(optimizer), After(ops[-1].name), *copied))
    return ops + updates


def _start(plan: Plan, part: DasoPart, *after: After) -> list[Op]:
    """Copy the parameters and begin to sum them over the nodes."""
    mine = in_order(plan, part.purpose) if part.mine else []
    return [op for i in mine for op in send_ops(plan, i, after, part.root)]


def _merge(plan: Plan, part: DasoPart, updated: After) -> list[Op]:
    """Merge the sum on the ranks that have it, and broadcast the result inside the node."""
    mine = in_order(plan, part.purpose) if part.mine else []
    ops = [merge_op(plan, i, part.waited, updated) for i in mine]
    if plan.machine.everyone.lanes > 1:
        for i in in_order(plan, "spread"):
            there = _last_merge(plan, part.purpose, plan.launches[i]) if part.mine else None
            ops += broadcast_ops(plan, i, part.root, there, updated)
    return ops


def _last_merge(plan: Plan, purpose: str, launch: Launch) -> After:
    """Return the last merge of a purpose that changes a part of a launch's tensors."""
    tensors = {piece.tensor for piece in launch.pieces}
    rows = [
        i
        for i in in_order(plan, purpose)
        if tensors & {piece.tensor for piece in plan.launches[i].pieces}
    ]
    return end_of(plan, rows[-1], Kind.MERGE)


def _merged(plan: Plan, part: DasoPart | None, back: int) -> tuple[After, ...]:
    """Return the last operation of a merge on a rank; it ends after the merge's others."""
    if part is None:
        return ()
    purpose, kind = (part.purpose, Kind.MERGE) if part.mine else ("spread", Kind.DECODE)
    return (end_of(plan, in_order(plan, purpose)[-1], kind, back),)


def _copied(plan: Plan, part: DasoPart | None, back: int) -> tuple[After, ...]:
    """Return the last copy of merged parameters for the node; no update may come before it."""
    if part is None or not part.mine or plan.machine.everyone.lanes == 1:
        return ()
    return (end_of(plan, in_order(plan, "spread")[-1], Kind.ENCODE, back),)


@lru_cache(maxsize=64)
def _check(plan: Plan, skip: int, wait: int, local: int) -> None:
    """Refuse launches that this strategy cannot follow."""
    if local > 1 and not plan.mean:
        raise CommschedError(
            "strategy 'daso': local_skip is for gradients that are averaged, not summed"
        )
    if wait > skip > 0:
        raise CommschedError(
            f"strategy 'daso': wait cannot be {wait} with gs {skip}; an exchange is merged before"
            " the next one starts; allowed: at most gs"
        )
    rules = {
        "": Rule("gradient", "node"),
        "blocking": Rule("parameter", "peers"),
        "cycling": Rule("parameter", "peers", max(skip, 1), wait),
        "spread": Rule("parameter", "node", max(skip, 1), wait),
    }
    check_rules(plan, rules)
    for index, launch in enumerate(plan.launches):
        where = f"strategy 'daso': launch {launch.name!r}"
        check_teams_alike(plan, index, where)
        if launch.among == "peers":
            check_sums(plan, index, where)
        if (launch.purpose == "spread") != (launch.method == "broadcast"):
            raise CommschedError(f"{where}: method 'broadcast' is only for purpose 'spread'")


STRATEGIES.add("daso")(Daso())
