"""A prediction in a few lines: iteration, exposed communication, critical path, memory."""

from collections import defaultdict
from typing import Any

import numpy as np

from commsched.program.registry import STRATEGIES
from commsched.simulate.native import sentence
from commsched.simulate.result import Prediction
from commsched.timeline.measure import exposed, hidden, idle
from commsched.timeline.spread import Interval, interval
from commsched.units import nbytes, seconds

SPANS = 500_000  # limit for exposed and hidden time, which take 2 s


def report(prediction: Prediction) -> dict[str, Any]:
    """Numbers of a prediction, in s and B; from the first ranks' spans if there are very many."""
    plan, steps = prediction.plan, prediction.steps
    spans = sum(len(p.ranks) for p in prediction.placed)
    timeline = prediction.timeline(max(1, plan.machine.size * SPANS // max(spans, SPANS)))
    first = 1 if steps > 1 else 0
    settled = slice(first, None)
    path: dict[str, float] = defaultdict(float)
    for part in prediction.critical_path:
        path[part.stream] += part.seconds / steps
    sure = interval(timeline)
    memory, limit = prediction.memory, plan.machine.device.memory
    return {
        "plan": plan.hash,
        "ranks": plan.machine.size,
        "steps": steps,
        "iteration_seconds": float(np.median(prediction.iterations[settled])),
        "mean_step_seconds": (prediction.end - float(prediction.starts[first].mean()))
        / (steps - first),
        "iteration_p10": sure.low,
        "iteration_p90": sure.high,
        "held_out_errors": sure.residuals,
        # Means: strategies that exchange every few steps do nothing in most steps.
        "exposed_seconds": float(exposed(timeline)[:, settled].mean()),
        "hidden_seconds": float(hidden(timeline)[:, settled].mean()),
        "bubble_seconds": float(np.median(idle(timeline)[:, settled])),
        "strategy": plan.strategy,
        "native": sentence(plan),
        "bytes_per_rank_and_step": sum(float(p.sent.sum()) for p in prediction.placed)
        / (steps * plan.machine.size),
        "critical_path_seconds_per_step": dict(path),
        "memory_bytes": {**memory._asdict(), "total": memory.total},
        "activations_known": any(layer.activation for layer in plan.net.layers),
        "memory_limit_bytes": limit,
        "fits": memory.total <= limit,
        "warnings": list(timeline.warnings),
    }


def lines(found: dict[str, Any]) -> list[str]:
    """Return the report as text, line by line."""
    path = found["critical_path_seconds_per_step"]
    memory = found["memory_bytes"]
    shown = ", ".join(f"{stream} {seconds(value)}" for stream, value in path.items())
    activations = nbytes(memory["activations"])
    if not found["activations_known"]:
        activations = "unknown"
    text = [
        f"iteration {seconds(found['iteration_seconds'])} on {found['ranks']} ranks (median of"
        f" {found['steps']} steps, the first left out; mean {seconds(found['mean_step_seconds'])})",
        f"communication per step: exposed {seconds(found['exposed_seconds'])}, hidden"
        f" {seconds(found['hidden_seconds'])}; {nbytes(found['bytes_per_rank_and_step'])} sent"
        " per rank",
        f"critical path per step: {shown}",
        f"memory per rank: {nbytes(memory['total'])} of {nbytes(found['memory_limit_bytes'])}"
        f" (parameters {nbytes(memory['parameters'])}, gradients {nbytes(memory['gradients'])},"
        f" optimizer {nbytes(memory['optimizer'])}, activations {activations}, buckets"
        f" {nbytes(memory['buckets'])}, residuals {nbytes(memory['residuals'])}, packets"
        f" {nbytes(memory['packets'])})",
    ]
    if found["native"]:
        text.append(found["native"])
    if found["bubble_seconds"] > 0.0:
        share = found["bubble_seconds"] / found["iteration_seconds"]
        text.insert(2, f"bubble per step: {seconds(found['bubble_seconds'])} ({share:.1%})")
    if found["held_out_errors"]:
        sure = Interval(
            low=found["iteration_p10"],
            high=found["iteration_p90"],
            residuals=found["held_out_errors"],
        )
        text.insert(1, f"p10 to p90 of the iteration: {sure}; {sure.basis}")
    text += [f"warning: {sentence}" for sentence in found["warnings"]]
    if not found["fits"]:
        why = "more stages need less on each rank"
        if STRATEGIES[found["strategy"]].sums_every_step:
            why = "every rank of data parallelism holds the whole model"
        text.append(f"warning: this does not fit the device's memory: {why}")
    return text
