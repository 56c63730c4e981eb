"""A measured timeline in a few lines."""

from collections.abc import Iterable
from math import nan
from typing import Any

import numpy as np

from commsched.errors import CommschedError
from commsched.timeline.header import Fallback
from commsched.timeline.measure import exposed, has_messages, idle, iteration_seconds
from commsched.timeline.model import Timeline
from commsched.units import nbytes, seconds

TOLD = ("placement", "other_fabric", "verified", "polling_cpu_s", "fallbacks", "switches")


def summary(timeline: Timeline) -> dict[str, Any]:
    """Iteration time, exposed communication and bytes, in SI units."""
    if not len(timeline):
        raise CommschedError(
            f"the {timeline.kind} timeline has no spans, so there is nothing to say"
        )
    iterations = iteration_seconds(timeline)
    settled = iterations[1:] if len(iterations) > 1 else iterations
    steps = len(iterations)
    total = float(timeline.nbytes.sum()) / (steps * timeline.ranks)
    apart = exposed(timeline)
    bubble, header = {}, timeline.header.to_data()
    if has_messages(timeline):
        nothing = idle(timeline)
        bubble["bubble_seconds"] = float(np.median(nothing[:, 1:] if steps > 1 else nothing))
    return {
        "plan": timeline.plan_hash,
        "ranks": timeline.ranks,
        "steps": steps,
        "iteration_seconds": float(np.median(settled)),
        "iteration_p10": float(np.quantile(settled, 0.1)),
        "iteration_p90": float(np.quantile(settled, 0.9)),
        "exposed_seconds": float(np.median(apart[:, 1:] if steps > 1 else apart)),
        **bubble,
        "bytes_per_rank_and_step": total,
        "clock_uncertainty_seconds": timeline.clock_uncertainty,
        **{key: header[key] for key in TOLD if key in header},
    }


def lines(found: dict[str, Any]) -> list[str]:
    """Return a summary as lines of text."""
    text = [
        f"iteration {seconds(found['iteration_seconds'])}"
        f" (p10 {seconds(found['iteration_p10'])}, p90 {seconds(found['iteration_p90'])},"
        f" {found['steps']} steps, the first left out)",
        f"exposed communication {seconds(found['exposed_seconds'])} per step,"
        f" {nbytes(found['bytes_per_rank_and_step'])} sent per rank and step,"
        f" clocks within {seconds(found['clock_uncertainty_seconds'])}",
    ]
    if "bubble_seconds" in found:
        share = found["bubble_seconds"] / found["iteration_seconds"]
        text.append(f"bubble {seconds(found['bubble_seconds'])} per step ({share:.1%})")
    if "verified" in found:
        errors = found["verified"]["largest_relative_error"]
        shown = ", ".join(
            f"{name} {nan if error is None else error:.2g}" for name, error in errors.items()
        )
        text.append(f"verified against the dense sum; largest relative L2 error: {shown}")
    text += [_fallen(Fallback(**fall)) for fall in found.get("fallbacks", [])]
    text += [f"from step {s['step']} on: {s['why']}" for s in found.get("switches", [])]
    wrong = [*found.get("placement", []), *found.get("other_fabric", [])]
    text += [f"warning: {sentence}" for sentence in wrong]
    return text


def fallback_sentence(fallbacks: Iterable[Fallback] | None, since: int) -> str:
    """Say which tensors left their error budget, so that launches are dense from a step on."""
    return "\n".join(_fallen(fall) for fall in fallbacks or () if fall.since == since)


def _fallen(fall: Fallback) -> str:
    error = "is no number" if fall.error is None else format(fall.error, ".3g")
    return (
        f"tensor {fall.tensor!r} left its budget in step {fall.step}: error {error}, allowed"
        f" {fall.budget:g}; {', '.join(fall.launches)} dense from step {fall.since} on"
    )
