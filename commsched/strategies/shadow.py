"""Each rank trains alone; in the background its parameters are drawn towards a common model."""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from commsched.errors import CommschedError
from commsched.plan.model import Param, Plan
from commsched.program.launch_ops import (
    OPTIMIZER,
    Rule,
    check_rules,
    check_sums,
    end_of,
    in_order,
    merge_op,
    replica_memory,
    send_ops,
    update_traffic,
)
from commsched.program.layer_ops import passes
from commsched.program.model import After, Kind, Op, Program, Role, by_name
from commsched.program.parameters import Parameter, Range
from commsched.program.registry import STRATEGIES
from commsched.program.strategy import Floats, Memory, State, Strategy

MANY = 2**31
UPDATE = "update"
PURPOSE = "average"  # of its launches
KEPT = {"average": 0, "bmuf": 2, "easgd": 1}  # words per parameter that live from merge to merge


class Shadow(Strategy):
    """Sum a copy of the parameters after every `every`-th step; merge `lag` steps later.

    Step numbers decide when to merge, not times of arrival: equal seeds give equal bits. With
    avg = the mean of all ranks' copies, a = `alpha`, r = `rate`, m = `momentum`, each rank does
        average:  w := (1 - a) w + a avg
        bmuf:     v := m v + r (avg - g),  g := g + v,  w := (1 - a) w + a g
        easgd:    w := (1 - a) w + a g,  then g := g + r (avg - g)
    g is equal on all ranks; before the first merge g is the first avg, and v is 0.
    Source: Zheng et al., "ShadowSync", arXiv 2003.03477; Chen & Huo, "Scalable training of deep
    learning machines by incremental block training with intra-block parallel optimization and
    blockwise model-update filtering", ICASSP 2016; Zhang, Choromanska & LeCun, "Deep learning with
    elastic averaging SGD", NeurIPS 2015.
    """

    name = "shadow"
    averages = True
    parameters: Mapping[str, Parameter] = {
        "rule": Parameter("average", tuple(KEPT)),
        "every": Parameter(8, Range(1, MANY), (4, 8, 16)),
        "lag": Parameter(1, Range(0, MANY)),
        "alpha": Parameter(0.5, Range(0.0, 1.0)),
        "rate": Parameter(1.0, Range(0.0, 2.0)),
        "momentum": Parameter(0.0, Range(0.0, 1.0)),
        "optimizer": OPTIMIZER,
    }

    def lower(self, plan: Plan, step: int, decisions: Mapping[str, float]) -> Program:
        settings = self.settings(plan)
        every, lag = int(settings["every"]), int(settings["lag"])
        _check(plan, every, lag)
        ops = _ops(
            plan,
            settings["optimizer"],
            starts=(step + 1) % every == 0,
            merges=_merges(step, every, lag),
            copied=step > 0 and step % every == 0,
            before=_merges(step - 1, every, lag),
            lag=lag,
        )
        role = Role(ranks=plan.machine.everyone.ranks, ops=ops)
        return Program(step=step, roles=(role,), reach=max(lag, 1))

    def operations(self, plan: Plan) -> dict[str, Op]:
        optimizer = self.settings(plan)["optimizer"]
        ops = _ops(plan, optimizer, starts=True, merges=True, copied=False, before=False, lag=0)
        return by_name(ops)

    def merge(self, plan: Plan, op: Op, local: Floats, total: Floats, state: State) -> None:
        settings = self.settings(plan)
        alpha, rate, momentum = (np.float32(settings[key]) for key in ("alpha", "rate", "momentum"))
        mean = total / np.float32(plan.machine.size)
        rule = settings["rule"]
        common = mean if rule == "average" else state.setdefault("common", mean)
        if rule == "bmuf":
            speed = state.setdefault("speed", np.zeros_like(mean))
            speed *= momentum
            speed += rate * (mean - common)
            common += speed
        local *= np.float32(1.0) - alpha
        local += alpha * common
        if rule == "easgd":
            common += rate * (mean - common)

    def memory(self, plan: Plan) -> Memory:
        settings = self.settings(plan)
        buckets = plan.net.numel * (2 + KEPT[str(settings["rule"])])
        return replica_memory(plan, settings["optimizer"], buckets, range(len(plan.launches)))


def _merges(step: int, every: int, lag: int) -> bool:
    """Tell whether a step ends with the merge of a copy that is `lag` steps old."""
    return step >= lag and (step - lag + 1) % every == 0


@lru_cache(maxsize=32)
def _ops(
    plan: Plan,
    optimizer: Param,
    *,
    starts: bool,
    merges: bool,
    copied: bool,
    before: bool,
    lag: int,
) -> tuple[Op, ...]:
    """Build the operations of a step.

    `before`: the last step ended with a merge; `copied`: the last step began a sum, and no
    parameter may change until it is copied.
    """
    order = in_order(plan, PURPOSE)
    ops = passes(plan, (end_of(plan, order[-1], Kind.MERGE, 1),) if before else ())
    net, device = plan.net, plan.machine.device
    seconds = net.update_seconds(net.numel, update_traffic(optimizer), device)
    read = (end_of(plan, order[-1], Kind.ENCODE, 1),) if copied else ()
    ops.append(Op(kind=Kind.APPLY, name=UPDATE, stream="compute", after=read, seconds=seconds))
    updated = After(UPDATE)
    merging = [merge_op(plan, i, lag, updated) for i in order] if merges else []
    after = (updated, After(merging[-1].name)) if merging and lag else (updated,)
    copying = [op for i in order for op in send_ops(plan, i, after)] if starts else []
    return (*ops, *(copying + merging if lag == 0 else merging + copying))


@lru_cache(maxsize=64)
def _check(plan: Plan, every: int, lag: int) -> None:
    """Refuse launches that this strategy cannot follow."""
    if lag > every:
        raise CommschedError(
            f"strategy 'shadow': lag cannot be {lag} where every is {every}; a sum is merged before"
            f" the next copy; allowed: at most {every}"
        )
    check_rules(plan, {PURPOSE: Rule("parameter", "all", every, lag)})
    for index, launch in enumerate(plan.launches):
        check_sums(plan, index, f"strategy 'shadow': launch {launch.name!r}")


STRATEGIES.add("shadow")(Shadow())
