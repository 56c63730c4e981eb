"""The summary of a timeline in a few lines."""

from collections.abc import Iterable
from math import nan
from typing import Any

from commsched.errors import CommschedError
from commsched.timeline import measure
from commsched.timeline.cycles import totals
from commsched.timeline.header import Fallback
from commsched.timeline.model import Timeline
from commsched.timeline.spread import interval, interval_data, interval_lines
from commsched.timeline.totals import totals_data, totals_lines
from commsched.units import seconds

TOLD = ("placement", "other_fabric", "verified", "polling_cpu_s", "fallbacks", "switches")


def summary(timeline: Timeline) -> dict[str, Any]:
    """Return the totals of a step, in s and B, and a run's messages."""
    if not len(timeline):
        raise CommschedError(
            f"the {timeline.kind} timeline has no spans, so it cannot be summarised"
        )
    found, header = totals(timeline), timeline.header.to_data()
    sure, clocks = None, None
    if timeline.kind == "predicted":
        sure = interval(found, timeline.prediction.residuals)
    else:
        clocks = timeline.clock_uncertainty
    return {
        "plan": timeline.plan_hash,
        "kind": timeline.kind,
        "ranks": timeline.ranks,
        "ranks_in_file": len(measure.ranks_seen(timeline)),
        **totals_data(found),
        **interval_data(sure),
        "clock_uncertainty_seconds": clocks,
        "warnings": list(timeline.warnings),
        **{key: header[key] for key in TOLD if key in header},
    }


def lines(found: dict[str, Any]) -> list[str]:
    """Return a summary as lines of text."""
    text = [*totals_lines(found), *interval_lines(found)]
    if found["clock_uncertainty_seconds"] is not None:
        text.append(f"clocks within {seconds(found['clock_uncertainty_seconds'])}")
    if found["ranks_in_file"] < found["ranks"]:
        text.append(
            f"the timeline has spans of {found['ranks_in_file']:,} of {found['ranks']:,} ranks"
        )
    if "verified" in found:
        errors = found["verified"]["largest_relative_error"]
        shown = ", ".join(
            f"{name} {nan if error is None else error:.2g}" for name, error in errors.items()
        )
        text.append(f"verified against the dense sum; largest relative L2 error: {shown}")
    text += [_fallen(Fallback(**fall)) for fall in found.get("fallbacks", [])]
    text += [f"from step {s['step']} on: {s['why']}" for s in found.get("switches", [])]
    wrong = [*found["warnings"], *found.get("placement", []), *found.get("other_fabric", [])]
    text += [f"warning: {sentence}" for sentence in wrong]
    return text


def fallback_sentence(fallbacks: Iterable[Fallback] | None, since: int) -> str:
    """Describe a tensor that left its error budget, and the launches that are dense from then."""
    return "\n".join(_fallen(fall) for fall in fallbacks or () if fall.since == since)


def _fallen(fall: Fallback) -> str:
    error = "is no number" if fall.error is None else format(fall.error, ".3g")
    return (
        f"tensor {fall.tensor!r} left its budget in step {fall.step}: error {error}, allowed"
        f" {fall.budget:g}; {', '.join(fall.launches)} dense from step {fall.since} on"
    )
