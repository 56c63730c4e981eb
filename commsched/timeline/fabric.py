"""On what fabric a timeline was measured, or for which it was predicted."""

from commsched import files
from commsched.machine.fabric import Fabric
from commsched.machine.file import fabric_from_data
from commsched.timeline.model import Timeline

VERBS = {"predicted": "calibrated", "measured": "run"}  # kind of timeline -> what its fabric did


def fabric(t: Timeline) -> Fabric | None:
    """Read a timeline's fabric; None where it has none, an error where it is wrong."""
    data = t.meta.get("fabric")
    return None if data is None else fabric_from_data(data, f"fabric of the {t.kind} timeline")


def differences(a: Timeline, b: Timeline) -> tuple[str, ...]:
    """Say how the fabrics of two timelines differ, and from that of its plan what a run says."""
    found: list[str] = []
    for t in (a, b):
        said = t.meta.get("other_fabric", [])
        found += files.convert(said, list[str], f"other_fabric of the {t.kind} timeline")
    one, other = fabric(a), fabric(b)
    if one is not None and other is not None:
        found += one.differences(other, (VERBS[a.kind], VERBS[b.kind]))
    return tuple(dict.fromkeys(found))
