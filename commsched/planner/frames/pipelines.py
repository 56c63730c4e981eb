"""The frame of strategies whose plans have stages."""

from commsched.planner.pipelines import pipelined, staged
from commsched.planner.registry import FRAMES, OUTLINES
from commsched.program.registry import STRATEGIES
from commsched.program.stages import PipelineStrategy

for name, strategy in STRATEGIES.items():
    if isinstance(strategy, PipelineStrategy) and "stages" in strategy.parameters:
        FRAMES.add(name)(pipelined)
        OUTLINES.add(name)(staged)
