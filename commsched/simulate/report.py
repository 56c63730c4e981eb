"""A prediction in a few lines: a step's totals, what it waits for, and memory."""

from typing import Any

import numpy as np

from commsched.machine.trust import errors_of
from commsched.plan.model import Plan
from commsched.program.registry import STRATEGIES
from commsched.simulate.native import sentence
from commsched.simulate.result import Prediction
from commsched.simulate.step_count import STEPS
from commsched.timeline.spread import interval, interval_data, interval_lines
from commsched.timeline.totals import totals_data, totals_lines
from commsched.units import nbytes, seconds


def report(prediction: Prediction) -> dict[str, Any]:
    """Return the numbers of a prediction, in s and B."""
    plan, path = prediction.plan, prediction.step_path
    errors = errors_of(plan.machine, plan.net.occupies_cores)
    memory, limit = prediction.memory, plan.machine.device.memory
    used: dict[str, float | None] = {**memory._asdict(), "total": memory.total}
    if not any(layer.activation for layer in plan.net.layers):
        used["activations"] = None
    return {
        "plan": plan.hash,
        "ranks": plan.machine.size,
        "strategy": plan.strategy,
        "native": sentence(plan),
        "plan_iteration_seconds": _of_plan(prediction),
        "period_shares": [share for share, _ in STRATEGIES[plan.strategy].periods(plan)],
        **totals_data(prediction.totals),
        **interval_data(interval(prediction.totals, errors)),
        "experts": _experts(plan),
        "critical_path": None
        if path is None
        else {
            "rank": path.rank,
            "steps": path.steps,
            "seconds": path.streams,
            "sum_seconds": path.seconds,
        },
        "memory_bytes": used,
        "memory_limit_bytes": limit,
        "fits": memory.total <= limit,
        "warnings": list(prediction.warnings),
    }


def _of_plan(prediction: Prediction) -> float | None:
    """Return the plan's own iteration, if it is the median of other steps than these."""
    plan, others = prediction.plan, prediction.totals.counted != STEPS - 1
    return plan.iteration if plan.iteration and others and not plan.machine.alike else None


def _experts(plan: Plan) -> dict[str, float] | None:
    """Return the load of a net's experts: the busiest rank against the mean, what is dropped."""
    if not plan.net.experts_of:
        return None
    some = plan.net.experts_of.values()
    work = sum(each.work_of(plan.net.experts) for each in some)
    choices = sum(each.top * each.tokens for each in some)
    return {
        "busiest_work": float(np.max(work) / np.mean(work)),
        "dropped_share": sum(each.dropped for each in some) / choices,
    }


def lines(found: dict[str, Any]) -> list[str]:
    """Return the report as text, line by line."""
    memory = found["memory_bytes"]
    activations = memory["activations"]
    shown = "unknown" if activations is None else nbytes(activations)
    text = [
        *totals_lines(found),
        *_plan_lines(found),
        *_period_lines(found),
        *interval_lines(found),
        *_path_lines(found),
        f"memory per rank: {nbytes(memory['total'])} of {nbytes(found['memory_limit_bytes'])}"
        f" (parameters {nbytes(memory['parameters'])}, gradients {nbytes(memory['gradients'])},"
        f" optimizer {nbytes(memory['optimizer'])}, activations {shown}, buckets"
        f" {nbytes(memory['buckets'])}, residuals {nbytes(memory['residuals'])}, packets"
        f" {nbytes(memory['packets'])})",
    ]
    if found["experts"]:
        busiest, dropped = (found["experts"][key] for key in ("busiest_work", "dropped_share"))
        text.append(
            f"experts: the busiest rank computes {busiest:.3g} times the mean;"
            f" {100 * dropped:.3g} % of the tokens' choices exceed the capacity and are dropped"
        )
    if found["native"]:
        text.append(found["native"])
    text += [f"warning: {sentence}" for sentence in found["warnings"]]
    if not found["fits"]:
        why = "more stages need less on each rank"
        if STRATEGIES[found["strategy"]].sums_every_step:
            why = "every rank of data parallelism holds the whole model"
        text.append(f"warning: this does not fit the device's memory: {why}")
    return text


def _plan_lines(found: dict[str, Any]) -> list[str]:
    """Say why the iteration is not the one that the plan has."""
    planned = found["plan_iteration_seconds"]
    if planned is None:
        return []
    return [f"the plan's iteration, {seconds(planned)}, is the median of {STEPS - 1} steps"]


def _period_lines(found: dict[str, Any]) -> list[str]:
    """Say how many steps of a training are like its first ones, if not all are."""
    share, *later = found["period_shares"]
    if not later:
        return []
    return [
        f"{100 * share:.3g} % of a training's steps are like its first ones, and others exchange"
        " otherwise; 'commsched sweep' predicts the mean over all"
    ]


def _path_lines(found: dict[str, Any]) -> list[str]:
    """Say what a step waits for, and what that sums to where it is not the iteration."""
    path, iteration = found["critical_path"], found["iteration_median_seconds"]
    if path is None:
        return []
    shown = ", ".join(f"{stream} {seconds(value)}" for stream, value in path["seconds"].items())
    total = "the iteration"
    if abs(path["sum_seconds"] - iteration) > 1e-6 * iteration:
        total = f"{seconds(path['sum_seconds'])}, the mean of {path['steps']} steps"
    return [f"critical path of a step: {shown}; together {total}"]
