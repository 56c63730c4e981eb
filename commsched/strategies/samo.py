"""A pruned net in a message-driven pipeline: only the values under a static mask are kept."""

from collections.abc import Mapping
from dataclasses import replace

from commsched.kernels.pruned import kept_of
from commsched.machine.model import Machine
from commsched.net.graph import Net, Tensor
from commsched.net.sparsity import DENSE
from commsched.plan.model import Param, Plan
from commsched.program import recompute
from commsched.program import stages as pipeline
from commsched.program.draft import Draft
from commsched.program.flushed_pipeline import StageWork, as_they_come, flushed
from commsched.program.parameters import Parameter, Range
from commsched.program.registry import STRATEGIES
from commsched.program.stages import Stage
from commsched.program.strategy import Memory

SECTOR = 16  # halves in a GPU's smallest read: 32 B
ADAM = 36.0  # B moved per value: g16 2, g32 8, parameter, both moments 8 each, parameter as half 2


class Samo(pipeline.PipelineStrategy):
    """SAMO on AxoNN: stages and replicas, mixed precision with Adam, fp16 sums among replicas.

    With f = 1 - pruned and phi parameters a stage's rank keeps, in B:

        2 phi (parameters as halves, zeros in place) + 24 f phi: g16 2, g32 4, parameters 4,
        Adam 8, index 4, copy for the exchange 2

    and 20 phi if nothing is pruned. Pruning saves memory from pruned = 0.25 on.
    A rank sends 2 (D - 1) / D * 2 f phi / K bytes among D replicas of K stages, and never an index:
    the mask is the same everywhere. Messages decide what is computed next; at most K microbatches
    are in flight. Every microbatch's gradient is packed at once: the index is read, values are
    gathered by sectors of 16 halves, and added to what is packed already. With `recompute` every
    backward repeats the forward, see `recompute.kept`. Before an update, all ranks agree whether
    any rank has a sum beyond 16 bits; if so, no rank updates, and the loss scale is halved. `mask`
    says what is kept of each tensor: its largest values at the start, or after a dense warm-up of
    at most `warmup` steps, or random ones; tensors of at most `whole` elements are not pruned.
    The plan's net has the tensors as they travel; `parameters` is phi of the whole net.
    Source: Singh & Bhatele, "Exploiting sparsity in pruned neural networks to optimize large model
    training", IPDPS 2023.
    Holds for tensors that are pruned alike: tensors spared by `whole` count as spread over the
    stages. There is no gain on one GPU, the bubble shrinks only with 1 / K, and a real gather is
    slower than the memory's bandwidth, which is counted here.
    """

    name = "samo"
    fewest, codec, decides = True, "fp16", "overflow"
    parameters: Mapping[str, Parameter] = {
        **pipeline.PARAMETERS,
        **recompute.PARAMETERS,
        "pruned": Parameter(0.9, Range(0.0, 0.999), (0.0, 0.9)),
        "mask": Parameter("magnitude", ("magnitude", "random", "early-bird")),
        "warmup": Parameter(200, Range(1, 2**31)),
        "whole": Parameter(0, Range(0, 2**53)),
        "parameters": Parameter(0, Range(0, 2**53), learns=False),
    }

    def prepare(
        self, net: Net, machine: Machine, settings: Mapping[str, Param]
    ) -> tuple[Net, dict[str, Param]]:
        share, whole = 1.0 - float(settings["pruned"]), int(settings["whole"])

        def sent(tensor: Tensor) -> Tensor:
            return packed(tensor, share if tensor.numel > whole else 1.0)

        layers = (replace(layer, tensors=tuple(map(sent, layer.tensors))) for layer in net.layers)
        numel = net.numel if share < 1.0 else 0
        return net.part(layers), {**settings, "parameters": numel}

    def draft(self, plan: Plan) -> Draft:
        settings, stages, m = self.cut(plan)
        share = 1.0 - float(settings["pruned"])
        bandwidth = plan.machine.device.bandwidth

        def extra(stage: Stage) -> float:
            packing = packing_traffic(stage.numel, self._dense(plan, stage), share) / bandwidth
            return packing + recompute.repeated(stage, settings)

        traffic = ADAM if share == 1.0 else ADAM + 4.0 + 2.0 / share  # index; zeros
        work = StageWork(traffic, extra, ready=True, limit=len(stages), agrees=True)
        return flushed(plan, stages, as_they_come, m, work)

    def memory(self, plan: Plan) -> Memory:
        settings, stages, m = self.cut(plan)
        many, share = min(m, len(stages)), 1.0 - float(settings["pruned"])
        tensors = []
        for stage in stages:
            state = state_memory(stage.numel, self._dense(plan, stage), share)
            each, once = recompute.kept(plan.net, stages, stage.number, settings)
            tensors.append(state._replace(activations=many * each + once))
        return max(tensors, key=lambda memory: memory.total)

    def _dense(self, plan: Plan, stage: Stage) -> float:
        """Count a stage's parameters before pruning: its part of the whole net's parameters."""
        whole = int(self.settings(plan)["parameters"]) or plan.net.numel
        return whole * stage.numel / plan.net.numel if stage.numel else 0.0


def packed(tensor: Tensor, share: float) -> Tensor:
    """Return a tensor of the values under a mask that keeps a share of them, as halves."""
    if share == 1.0:
        return replace(tensor, dtype="float16", sparsity=DENSE)
    shape = (kept_of(tensor.numel, share),)
    return replace(tensor, shape=shape, axis=-1, dtype="float16", sparsity=DENSE)


def state_memory(kept: float, dense: float, share: float) -> Memory:
    """Return the bytes of the state of `dense` parameters if pruning keeps `kept` parameters."""
    if share == 1.0:
        return Memory(6.0 * dense, 6.0 * dense, 8.0 * dense, 0.0, 0.0)
    return Memory(2.0 * dense + 4.0 * kept, 6.0 * kept, 12.0 * kept, 0.0, 2.0 * kept)


def packing_traffic(kept: float, dense: float, share: float) -> float:
    """Return the bytes moved to pack one microbatch's gradient; 0 if nothing is pruned."""
    if share == 1.0:
        return 0.0
    touched = 1.0 - (1.0 - share) ** SECTOR  # of the sectors
    return 8.0 * kept + 2.0 * dense * touched


STRATEGIES.add("samo")(Samo())
