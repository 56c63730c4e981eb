"""The notes on a plan's launches in a timeline's file."""

import msgspec

from commsched.plan.model import Launch, Plan
from commsched.timeline.header import LaunchNote
from commsched.units import significant


def launch_notes(plan: Plan) -> dict[str, LaunchNote]:
    """Return the note of each launch, by name."""
    return {launch.name: _note(launch) for launch in plan.launches}


def _note(launch: Launch) -> LaunchNote:
    known = LaunchNote(
        method=launch.method,
        tensors=tuple(dict.fromkeys(name for name, _, _ in launch.pieces)),
        numel=launch.numel,
    )
    why = launch.reason
    if why is None:
        return known
    return msgspec.structs.replace(
        known,
        predicted_ms=significant(why.seconds * 1e3),
        runner_up=why.runner_up,
        runner_up_ms=significant(why.runner_up_seconds * 1e3),
        margin_ms=significant(why.margin * 1e3),
        opposite=why.opposite,
        opposite_margin_ms=significant(why.opposite_margin * 1e3),
    )
