"""Describe the stages of a pipeline plan."""

from commsched.plan.model import Plan
from commsched.program.recompute import kept, repeated
from commsched.program.registry import STRATEGIES
from commsched.program.stages import PipelineStrategy, grid
from commsched.text_table import table
from commsched.units import nbytes, seconds

HEADER = ("stage", "ranks", "layers", "from", "to", "forward", "backward", "head", "sends", "keeps")
RIGHT = {0, 2, 5, 6, 7, 8, 9}


def lines(plan: Plan, every: bool = True) -> list[str]:
    """Describe a pipeline plan, with a table of its stages if `every`; [] for other strategies.

    Times and bytes are those of one microbatch.
    """
    strategy = STRATEGIES[plan.strategy]
    if not isinstance(strategy, PipelineStrategy):
        return []
    settings = strategy.settings(plan)
    rows = []
    stages = grid(plan, settings)
    for stage in stages:
        ranks = ", ".join(map(str, stage.ranks[:4])) + (", ..." if len(stage.ranks) > 4 else "")
        rows.append(
            (
                str(stage.number),
                ranks,
                str(len(stage.layers)),
                stage.layers[0].name,
                stage.layers[-1].name,
                seconds(stage.forward),
                seconds(stage.backward + repeated(stage, settings)),
                seconds(stage.head) if stage.head else "-",
                "-" if stage.last else nbytes(float(stage.output)),
                nbytes(kept(plan.net, stages, stage.number, settings).each),
            )
        )
    given = ", ".join(f"{key} {value}" for key, value in settings.items())
    memory = strategy.memory(plan)
    parts = ", ".join(f"{name} {nbytes(size)}" for name, size in memory._asdict().items())
    shown = [table(HEADER, rows, RIGHT)] if every else []
    silent = (
        f"warning: messages carry nothing, as net {plan.net.name!r} does not say how many bytes"
        " its layers give; set message_bytes"
    )
    warned = [silent] if any(not (s.last or s.output) for s in stages) else []
    return [given, *shown, f"memory per rank: {nbytes(memory.total)} ({parts})", *warned]
