"""Expert parallelism: ranks hold different experts of a mixture, and everything else whole."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from commsched.errors import CommschedError
from commsched.exchange.experts import PREFIX
from commsched.exchange.registry import find_method
from commsched.machine.model import Machine
from commsched.net.expert_part import expert_degrees, is_expert
from commsched.net.graph import Layer, Net
from commsched.plan.model import Param, Plan
from commsched.program.expert_groups import COMBINE, DISPATCH, ExpertGroups
from commsched.program.launch_ops import (
    OPTIMIZER,
    apply_op,
    check_teams_alike,
    exchange_ops,
    replica_memory,
    update_traffic,
)
from commsched.program.layer_ops import DIRECTIONS, backward_of, compute
from commsched.program.model import After, Op, Program, Role
from commsched.program.parameters import Parameter, Range
from commsched.program.registry import STRATEGIES
from commsched.program.strategy import Memory, Strategy

MANY = 2**16


def _degrees(net: Net, machine: Machine, before: Mapping[str, Param]) -> list[Param]:
    """List the numbers of ranks, two or more, that can share a net's experts."""
    found = [k for k in expert_degrees(net, machine.size) if k > 1 and machine.size % k == 0]
    if not found:
        raise CommschedError(f"no two ranks can share experts of net {net.name!r}")
    return [*found]


class Expert(Strategy):
    """Data parallelism whose teams of E neighbouring ranks share the experts of each layer.

    Rank = replica E + place, and a rank of place p holds the p-th of E runs of experts. Forward,
    a layer of experts sends each token to the ranks of its experts (dispatch), these compute, and
    send back what they computed (combine), both by an all-to-all in the team; backward, gradients
    of outputs go to the experts, and gradients of tokens come back. Nothing hides the four. A rank
    has n experts per layer; each one takes t tokens of h elements in B bytes from a rank. A rank
    sends in a step and layer

        4 (E - 1) n (t h B + 4)          B to other ranks of its team, if all load is equal

    Of a hotter expert, more; it takes at most its capacity, and what exceeds it is dropped. The
    rank with the hottest experts receives and computes most, and the others wait for it. Gradients
    of experts are summed over the ranks / E replicas of their place, all others over all ranks.
    expert=0: the number of ranks with the shortest iteration that fits. `send` is the codec of what
    travels, auto: the tensors' own type. capacity=0 and zipf=-1: what the net says.
    Source: Lepikhin et al., "GShard: scaling giant models with conditional computation and
    automatic sharding", ICLR 2021; Fedus, Zoph & Shazeer, "Switch Transformers", JMLR 23(120),
    2022; Rajbhandari et al., "DeepSpeed-MoE: advancing mixture-of-experts inference and training
    to power next-generation AI scale", ICML 2022.
    """

    name = "expert"
    exact = True
    parameters: Mapping[str, Parameter] = {
        "expert": Parameter(0, Range(0, MANY), _degrees, learns=False),
        "send": Parameter("auto", ("auto", "dense", "bf16", "fp16", "fp8", "quant:8")),
        "capacity": Parameter(0.0, Range(0.0, 1e6)),
        "zipf": Parameter(-1.0, Range(-1.0, 100.0), learns=False),
        "optimizer": OPTIMIZER,
    }

    def lower(self, plan: Plan, step: int, decisions: Mapping[str, float]) -> Program:
        return Program(step=step, roles=_roles(plan))

    def memory(self, plan: Plan) -> Memory:
        own = ExpertGroups(plan)
        buckets = sum(launch.numel for launch in plan.launches)
        optimizer, used = self.settings(plan)["optimizer"], range(len(plan.launches))
        busiest = sum(x.activation * max(own.work(x)) for x in plan.net.layers)
        return replica_memory(plan, optimizer, buckets, used)._replace(activations=busiest)


@lru_cache(maxsize=16)
def _roles(plan: Plan) -> tuple[Role, ...]:
    """Build the role of all ranks."""
    _check(plan)
    return (Role(ranks=plan.machine.everyone.ranks, ops=_ops(plan, ExpertGroups(plan))),)


def _ops(plan: Plan, groups: ExpertGroups) -> tuple[Op, ...]:
    """Build the operations of a step; ranks of another place compute longer or shorter."""
    traffic = update_traffic(STRATEGIES[plan.strategy].settings(plan)["optimizer"])
    found: list[Op] = []
    for backward in (False, True):
        for layer in reversed(plan.net.layers) if backward else plan.net.layers:
            found += _layer(plan, groups, layer, backward)
            if backward:
                for index in groups.sums_after(layer.name):
                    found += exchange_ops(plan, index, backward_of(layer.name))
    last = {index: After(exchange_ops(plan, index, After(""))[-1].name) for index in groups.sums}
    return (*found, *(apply_op(plan, index, traffic, last[index]) for index in groups.sums))


def _layer(plan: Plan, groups: ExpertGroups, layer: Layer, backward: bool) -> Sequence[Op]:
    """Compute a layer; its experts after tokens were sent to them, and before they come back."""
    whole = compute(plan, layer, backward)
    if layer.experts is None:
        return [whole]
    work = tuple(groups.work(layer))
    if groups.width == 1:
        return [replace(whole, seconds=whole.seconds * work[0])]
    found = [replace(whole, name=f"{whole.name}/route", seconds=0.0)]
    for purpose, op in (
        (DISPATCH, replace(whole, name=f"{whole.name}/experts", paces=work)),
        (COMBINE, replace(whole, seconds=0.0)),
    ):
        index = groups.launch(layer.name, purpose)
        before = After(found[-1].name)
        found += exchange_ops(plan, index, before, DIRECTIONS[backward])
        found.append(replace(op, after=(After(found[-1].name),)))
    return found


def _check(plan: Plan) -> None:
    """Refuse launches that this strategy cannot follow."""
    groups, who = ExpertGroups(plan), f"strategy {plan.strategy!r}"
    layers = {layer.name: layer for layer in plan.net.layers}
    parts = {t.name for x in plan.net.layers for t in x.tensors if is_expert(x, t)}
    for index, launch in enumerate(plan.launches):
        where = f"{who}: launch {launch.name!r}"
        if launch.every != 1 or launch.lag != 0 or launch.among != "all":
            raise CommschedError(f"{where} must exchange in every step, and merge at once")
        sends = launch.purpose in (DISPATCH, COMBINE)
        if launch.payload != ("activation" if sends else "gradient") or (
            launch.purpose and not sends
        ):
            raise CommschedError(f"{where} has purpose {launch.purpose!r} for {launch.payload}s")
        if sends != launch.method.startswith(PREFIX) or find_method(launch.method).sharded:
            raise CommschedError(
                f"{where} has method {launch.method!r}; allowed: "
                + (f"{PREFIX}COLLECTIVE+CODEC" if sends else "a sum that every rank gets")
            )
        kinds = {piece.tensor in parts and groups.width > 1 for piece in launch.pieces}
        if len(kinds) > 1:
            raise CommschedError(f"{where} has tensors of experts and others; allowed is one kind")
        wanted = groups.teams if sends else groups.replicas if True in kinds else ((), 1)
        if (launch.group, launch.split) != wanted:
            raise CommschedError(f"{where} must exchange among the ranks of its tensors")
        if launch.split > 1 and not sends:
            check_teams_alike(plan, index, where)
        experts = layers[launch.after].experts
        if sends and (
            experts is None
            or launch.activations != experts.count * (1 + experts.slots * experts.width)
        ):
            raise CommschedError(f"{where} has other activations than its layer's experts take")
    for name in plan.net.experts_of if groups.width > 1 else ():
        for purpose in (DISPATCH, COMBINE):
            groups.launch(name, purpose)


STRATEGIES.add("expert")(Expert())
