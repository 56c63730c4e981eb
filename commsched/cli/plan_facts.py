"""What the commands tell of a plan: in one line, in several, and as JSON data."""

from typing import Any

from commsched.cli import reasons, stages
from commsched.machine.library import library_of
from commsched.machine.model import Machine
from commsched.machine.ports import network, network_data
from commsched.machine.trust import doubts, errors_of
from commsched.net.compute import compute_data, origin
from commsched.plan.model import Plan
from commsched.planner.auto.learning import Cost
from commsched.planner.auto.rows import learning
from commsched.planner.limits.memory import needed
from commsched.planner.reasons import verdict
from commsched.program.registry import STRATEGIES
from commsched.simulate import native
from commsched.units import nbytes


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
        *stages.lines(made, every=every),
    ]
    return [line for line in lines if line]


def _cost_in_learning(made: Plan) -> Cost:
    return learning(made, STRATEGIES[made.strategy].batches(made))


def headline(made: Plan) -> str:
    """Describe a plan in one line."""
    size, quality = nbytes(made.net.nbytes), reasons.quality(made)
    return (
        f"plan {made.hash[:12]}: {made.net.name} ({size} of gradients) on {made.machine.name},"
        f" {_ranks(made.machine)},"
        f" {made.strategy}, {len(made.launches)} launches" + (f"; {quality}" if quality else "")
    )


def _ranks(on: Machine) -> str:
    nodes = on.nodes
    if len(set(on.ranks_of_node)) > 1:
        return f"{on.size} ranks on {nodes} nodes"
    return f"{nodes} x {on.size // nodes} ranks"


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
