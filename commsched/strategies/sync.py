"""Synchronous data parallelism: every gradient is summed over all ranks before it is applied."""

from collections.abc import Mapping
from functools import lru_cache

from commsched.errors import CommschedError
from commsched.plan.model import Param, Plan
from commsched.program import After, Op, Program, Role
from commsched.strategies import STRATEGIES
from commsched.strategies.base import Memory, Strategy
from commsched.strategies.launch import OPTIMIZERS, apply_op, exchange_ops
from commsched.strategies.numbers import Options
from commsched.strategies.parts import compute


class Sync(Strategy):
    """Forward, backward, an exchange per bucket as soon as it is ready, apply.

    overlap "backward": all buckets are applied at the end of the step. "forward": a bucket is
    applied just before the first layer of the next step that reads it, so that late exchanges
    hide under the next forward pass (Peng et al., "ByteScheduler", SOSP 2019).
    """

    name = "sync"
    defaults: Mapping[str, Param] = {"overlap": "forward", "optimizer": "momentum"}
    allowed: Mapping[str, Options] = {
        "overlap": ("backward", "forward"),
        "optimizer": tuple(OPTIMIZERS),
    }

    def lower(self, plan: Plan, step: int, decisions: Mapping[str, float]) -> Program:
        settings = self.settings(plan)
        late, optimizer = settings["overlap"] == "forward", str(settings["optimizer"])
        ops = _ops(plan, late, optimizer, step > 0)
        role = Role(ranks=plan.machine.everyone.ranks, ops=ops)
        return Program(step=step, roles=(role,))

    def memory(self, plan: Plan) -> Memory:
        state = OPTIMIZERS[str(self.settings(plan)["optimizer"])][0]
        numel = plan.graph.numel
        return Memory(
            parameters=4.0 * numel,
            gradients=4.0 * numel,
            optimizer=float(state * numel),
            activations=sum(layer.activation for layer in plan.graph.layers),
            buckets=4.0 * numel,
        )


@lru_cache(maxsize=16)
def _ops(plan: Plan, late: bool, optimizer: str, later_step: bool) -> tuple[Op, ...]:
    """The operations of the first step, or of any later one: the same objects every step."""
    _check(plan)
    ops: list[Op] = []
    waiting = list(range(len(plan.launches)))  # buckets not yet applied in this pass
    home = {t.name: layer.name for layer in plan.graph.layers for t in layer.tensors}
    readers = [{home[piece.tensor] for piece in launch.pieces} for launch in plan.launches]
    for layer in plan.graph.layers:
        if late and later_step:
            used = [i for i in waiting if layer.name in readers[i]]
            waiting = [i for i in waiting if i not in used]
            ops += [_apply(plan, i, optimizer, steps_back=1) for i in used]
        ops.append(compute(plan, layer, "forward"))
    for layer in reversed(plan.graph.layers):
        ops.append(compute(plan, layer, "backward"))
    for i in sorted(range(len(plan.launches)), key=lambda i: plan.launches[i].priority):
        ops += _exchange(plan, i)
    if not late:
        ops += [_apply(plan, i, optimizer, steps_back=0) for i in waiting]
    return tuple(ops)


def _check(plan: Plan) -> None:
    """Refuse launches that mean something else than a gradient's sum over all ranks."""
    everyone = list(plan.machine.everyone.ranks)
    for launch in plan.launches:
        if launch.group and sorted(launch.group) != everyone:
            what = f"among {len(launch.group)} of {len(everyone)} ranks"
        elif launch.among != "all":
            what = f"among {launch.among!r}"
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


def _apply(plan: Plan, index: int, optimizer: str, steps_back: int) -> Op:
    after = After(_exchange(plan, index)[-1].name, steps_back)
    return apply_op(plan, index, OPTIMIZERS[optimizer][1], after)


def _exchange(plan: Plan, index: int) -> list[Op]:
    return exchange_ops(plan, index, After(f"backward/{plan.launches[index].after}"))


STRATEGIES.add("sync")(Sync())
