"""Pipelines of microbatches that flush: GPipe, and one forward one backward (1F1B)."""

from collections.abc import Mapping, Sequence

from commsched.plan.model import Plan
from commsched.program import recompute
from commsched.program import stages as pipeline
from commsched.program.draft import Draft
from commsched.program.flushed_pipeline import (
    Order,
    StageWork,
    all_forward_first,
    flushed,
    memory,
    most_kept,
    one_forward_one_backward,
)
from commsched.program.launch_ops import OPTIMIZER, update_traffic
from commsched.program.parameters import Parameter
from commsched.program.registry import STRATEGIES
from commsched.program.stages import Stage
from commsched.program.strategy import Memory


class Flushed(pipeline.PipelineStrategy):
    """Stages, microbatches, a flush; gradients are summed over the replicas of each stage.

        makespan = (m + (K - 1) / V) (f + b)      on K equal ranks with free messages

    m = microbatches; f, b [s] = forward and backward of one of them on one rank. With t_f = K f and
    t_b = K b the bubble is (t_f + t_b) (1 - 1 / K) / V. A rank keeps the activations of m
    microbatches under `gpipe`, of at most min(m, K) under `1f1b`. With `recompute` segments in a
    stage only their inputs are kept, and b is f longer, see `recompute.kept`.
    interleave = V under `1f1b`: a rank has V stages, with K - 1 stages of other ranks between them.
    The bubble is divided by V, messages are V times as many, and the first rank keeps the
    activations of K + (K - 1) / V microbatches. m is a multiple of K.
    Source: Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "Megatron-LM", SC 2021, section
    2.2; memory of interleaved stages: Korthikanti et al., "Reducing activation recomputation in
    large transformer models", MLSys 2023, section 4.2.3.
    """

    fewest, codec, exact = True, "", True

    def __init__(self, name: str, order: Order, more: Mapping[str, Parameter]) -> None:
        self.name = name
        self._order = order
        self.parameters: Mapping[str, Parameter] = {
            **pipeline.PARAMETERS,
            **more,
            **recompute.PARAMETERS,
            "optimizer": OPTIMIZER,
        }

    def draft(self, plan: Plan) -> Draft:
        settings, stages, m = self.cut(plan)
        traffic = update_traffic(settings["optimizer"])
        work = StageWork(traffic, lambda stage: recompute.repeated(stage, settings))
        return flushed(plan, stages, self._order, m, work)

    def memory(self, plan: Plan) -> Memory:
        settings, stages, m = self.cut(plan)

        def activations(held: Sequence[Stage]) -> float:
            kept = [recompute.kept(plan.net, stages, stage.number, settings) for stage in held]
            return most_kept(self._order, len(stages), m, held[0].number, kept)

        return memory(plan, stages, str(settings["optimizer"]), activations)


STRATEGIES.add("gpipe")(Flushed("gpipe", all_forward_first, {}))
STRATEGIES.add("1f1b")(
    Flushed("1f1b", one_forward_one_backward, {"interleave": pipeline.INTERLEAVE})
)
