"""Descriptions of a plan for the commands: in one line, in several, and as JSON data."""

from typing import Any

from commsched.cli import reasons
from commsched.machine.library import library_of
from commsched.machine.model import Machine
from commsched.machine.ports import network, network_data
from commsched.machine.trust import doubts, errors_of
from commsched.net.compute import compute_data, origin
from commsched.plan.model import Plan
from commsched.planner.auto.learning import LearningCost
from commsched.planner.auto.rows import learning
from commsched.planner.limits.memory import needed
from commsched.planner.reasons import verdict
from commsched.program.recompute import kept, repeated
from commsched.program.registry import STRATEGIES
from commsched.program.stages import PipelineStrategy, grid
from commsched.simulate import native
from commsched.text_table import table
from commsched.units import count, nbytes, seconds

HEADER = ("stage", "ranks", "layers", "from", "to", "forward", "backward", "head", "sends", "keeps")
RIGHT = {0, 2, 5, 6, 7, 8, 9}


def facts(made: Plan, every: bool = True) -> list[str]:
    """Describe a plan, its machine and its net, a line each; `every`: with all stages."""
    cost = _cost_in_learning(made)
    lines = [
        headline(made),
        *(f"warning: {sentence}" for sentence in doubts(errors_of(made.machine))),
        *network(made.machine),
        *origin(made.net),
        native.sentence(made),
        "" if cost.lost == 0 else f"cost in learning: {cost}",
        *stage_lines(made, every),
    ]
    return [line for line in lines if line]


def _cost_in_learning(made: Plan) -> LearningCost:
    return learning(made, STRATEGIES[made.strategy].batches(made))


def headline(made: Plan) -> str:
    """Describe a plan in one line."""
    size, quality = nbytes(made.net.nbytes), reasons.quality(made)
    return (
        f"plan {made.hash[:12]}: {made.net.name} ({size} of gradients) on {made.machine.name},"
        f" {_ranks(made.machine)},"
        f" {made.strategy}, {count(len(made.launches), 'launch')}"
        + (f"; {quality}" if quality else "")
    )


def _ranks(on: Machine) -> str:
    nodes = on.nodes
    if len(set(on.ranks_of_node)) > 1:
        return f"{on.size} ranks on {count(nodes, 'node')}"
    return f"{nodes} x {count(on.size // nodes, 'rank')}"


def summary(made: Plan) -> dict[str, Any]:
    """Return a summary of the plan as JSON data; bytes of launches are those of float32."""
    return {
        "hash": made.hash,
        "net": made.net.name,
        "machine": made.machine.name,
        "ranks": made.machine.size,
        "strategy": made.strategy,
        "planner": made.planner,
        "library": library_of(made.machine).title,
        "network": network_data(made.machine),
        "compute": compute_data(made.net),
        "iteration_median_seconds": made.iteration or None,
        "bound_seconds": made.bound or None,
        "verdict": verdict.data(made),
        "cost_in_learning": str(_cost_in_learning(made)),
        "memory_bytes_per_rank": needed(made),
        "memory_limit_bytes": made.machine.device.memory,
        "warnings": list(doubts(errors_of(made.machine))),
        "launches": [
            {
                "launch": launch.name,
                "tensors": len(launch.pieces),
                "bytes": 4 * launch.numel,
                "after": launch.after,
                "method": launch.method,
                "algorithm": native.algorithm(made, launch) or None,
                "payload": launch.payload,
                "among": launch.among,
                "purpose": launch.purpose,
                "every": launch.every,
                "lag": launch.lag,
                "seconds": launch.reason.seconds if launch.reason else None,
                "runner_up": launch.reason.runner_up if launch.reason else None,
                "runner_up_seconds": launch.reason.runner_up_seconds if launch.reason else None,
                "margin_seconds": launch.reason.margin if launch.reason else None,
                "opposite": launch.reason.opposite if launch.reason else None,
                "opposite_margin_seconds": launch.reason.opposite_margin if launch.reason else None,
            }
            for launch in made.launches
        ],
    }


def stage_lines(plan: Plan, every: bool = True) -> list[str]:
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
