"""Synchronous data parallelism: every gradient is summed over all ranks before it is applied."""

from collections.abc import Mapping

from commsched.ir import Layer
from commsched.methods import Choice, phases_of
from commsched.plan.model import Param, Plan
from commsched.program import After, Kind, Op, Program, Role
from commsched.strategies import STRATEGIES
from commsched.strategies.base import Memory, Strategy

# Bytes of optimiser state per parameter, and memory traffic of one update in B per parameter:
# read gradient, read and write the parameter and each state word.
OPTIMIZERS = {"sgd": (0, 12), "momentum": (4, 20), "adam": (8, 28)}


class Sync(Strategy):
    """Forward, backward, an exchange per bucket as soon as it is ready, apply.

    overlap "backward": all buckets are applied at the end of the step. "forward": a bucket is
    applied just before the first layer of the next step that reads it, so that late exchanges
    hide under the next forward pass (Peng et al., "ByteScheduler", SOSP 2019).
    """

    name = "sync"
    defaults: Mapping[str, Param] = {"overlap": "forward", "optimizer": "momentum"}
    allowed: Mapping[str, tuple[Param, ...]] = {
        "overlap": ("backward", "forward"),
        "optimizer": tuple(OPTIMIZERS),
    }

    def lower(self, plan: Plan, step: int, decisions: Mapping[str, float]) -> Program:
        late = self.settings(plan)["overlap"] == "forward"
        ops: list[Op] = []
        waiting = list(range(len(plan.launches)))  # buckets not yet applied in this pass
        home = {t.name: layer.name for layer in plan.graph.layers for t in layer.tensors}
        for layer in plan.graph.layers:
            if late and step > 0:
                used = [i for i in waiting if _reads(plan, i, layer, home)]
                waiting = [i for i in waiting if i not in used]
                ops += [self._apply(plan, i, steps_back=1) for i in used]
            ops.append(self._compute(plan, layer, "forward"))
        for layer in reversed(plan.graph.layers):
            ops.append(self._compute(plan, layer, "backward"))
        for i in sorted(range(len(plan.launches)), key=lambda i: plan.launches[i].priority):
            ops += _exchange(plan, i)
        if not late:
            ops += [self._apply(plan, i, steps_back=0) for i in waiting]
        everyone = Role(ranks=plan.machine.everyone.ranks, ops=tuple(ops))
        return Program(step=step, roles=(everyone,))

    def _compute(self, plan: Plan, layer: Layer, direction: str) -> Op:
        seconds = plan.graph.seconds(layer, plan.machine.device)
        return Op(
            kind=Kind.COMPUTE,
            name=f"{direction}/{layer.name}",
            stream="compute",
            seconds=seconds[0] if direction == "forward" else seconds[1],
            layer=layer.name,
        )

    def _apply(self, plan: Plan, index: int, steps_back: int) -> Op:
        traffic = OPTIMIZERS[str(self.settings(plan)["optimizer"])][1]
        launch = plan.launches[index]
        numel = sum(stop - start for _, start, stop in launch.pieces)
        last = _exchange(plan, index)[-1].name
        return Op(
            kind=Kind.APPLY,
            name=f"{launch.name}/apply",
            stream="compute",
            after=(After(last, steps_back),),
            seconds=numel * traffic / plan.machine.device.bandwidth,
            launch=index,
        )

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


def _reads(plan: Plan, index: int, layer: Layer, home: Mapping[str, str]) -> bool:
    """Whether a layer's forward needs a bucket's tensors."""
    return any(home[piece.tensor] == layer.name for piece in plan.launches[index].pieces)


def _exchange(plan: Plan, index: int) -> list[Op]:
    """Encode, exchange and decode of every phase of a launch's method."""
    launch = plan.launches[index]
    ops: list[Op] = []
    before = After(f"backward/{launch.after}")
    for number, phase in enumerate(phases_of(plan, index)):
        stem = f"{launch.name}/{phase.name}" if phase.name else launch.name
        parts = [(Kind.ENCODE, "encode"), (Kind.EXCHANGE, launch.stream), (Kind.DECODE, "decode")]
        if isinstance(phase, Choice):
            parts.insert(0, (Kind.DECIDE, launch.stream))
        for kind, stream in parts:
            ops.append(
                Op(
                    kind=kind,
                    name=f"{stem}/{kind}",
                    stream=stream,
                    after=(before,),
                    launch=index,
                    phase=number,
                )
            )
            before = After(ops[-1].name)
    return ops


STRATEGIES.add("sync")(Sync())
