"""Pipelines of microbatches that flush: GPipe, and one forward one backward (1F1B)."""

from collections.abc import Mapping

from commsched.plan.model import Plan
from commsched.program import recompute
from commsched.program import stages as pipeline
from commsched.program.draft import Draft
from commsched.program.flushed import (
    Order,
    StageWork,
    all_forward_first,
    flushed,
    memory,
    one_forward_one_backward,
)
from commsched.program.launch_ops import OPTIMIZER, update_traffic
from commsched.program.parameters import Parameter
from commsched.program.registry import STRATEGIES
from commsched.program.stages import Stage
from commsched.program.strategy import Memory


class Flushed(pipeline.PipelineStrategy):
    """Stages, microbatches, a flush; gradients are summed over the replicas of each stage.

        makespan = (m + K - 1) (f + b)      on K equal stages with m microbatches and free messages

    f, b [s] = forward and backward of one microbatch on one stage. With t_f = K f and t_b = K b
    the bubble is (t_f + t_b) (1 - 1 / K). A stage keeps the activations of m microbatches under
    `gpipe`, of at most min(m, K) under `1f1b`. With `recompute` segments in a stage only their
    inputs are kept, and b is f longer, see `recompute.kept`.
    Source: Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "Megatron-LM", SC 2021.
    """

    parameters: Mapping[str, Parameter] = {
        **pipeline.PARAMETERS,
        **recompute.PARAMETERS,
        "optimizer": OPTIMIZER,
    }
    fewest, codec, exact = True, "", True

    def __init__(self, name: str, order: Order) -> None:
        self.name = name
        self._order = order

    def draft(self, plan: Plan) -> Draft:
        settings = self.settings(plan)
        stages, m = pipeline.grid(plan, settings), int(settings["microbatches"])
        traffic = update_traffic(settings["optimizer"])
        work = StageWork(traffic, lambda stage: recompute.repeated(stage, settings))
        return flushed(plan, stages, self._order, m, work)

    def memory(self, plan: Plan) -> Memory:
        settings = self.settings(plan)
        stages, m = pipeline.grid(plan, settings), int(settings["microbatches"])

        def activations(stage: Stage) -> float:
            many = m if self.name == "gpipe" else min(m, len(stages) - stage.number)
            each, once = recompute.kept(plan.net, stages, stage.number, settings)
            return many * each + once

        return memory(stages, str(settings["optimizer"]), activations)


STRATEGIES.add("gpipe")(Flushed("gpipe", all_forward_first))
STRATEGIES.add("1f1b")(Flushed("1f1b", one_forward_one_backward))
