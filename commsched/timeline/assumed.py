"""What a prediction says about itself in a timeline's meta: dependencies, exchanges, residuals."""

from typing import Annotated

import msgspec

from commsched import files
from commsched.timeline.model import Timeline

Steps = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Microseconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Error = Annotated[float, msgspec.Meta(gt=-1, le=1e6)]


class Assumed(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of a predicted timeline's meta; all may be absent."""

    after: dict[str, list[tuple[str, Steps]]] = {}  # operation -> (input, steps back)
    # exchange -> us of latency and of bandwidth, for ranks that start together
    exchanges: dict[str, tuple[Microseconds, Microseconds]] = {}
    # (predicted - measured) / measured of iterations that the machine's calibration held out
    residuals: list[Error] = []


def assumed(t: Timeline) -> Assumed:
    """Read what a timeline's meta holds of it; a wrong value is an error."""
    known = {key: t.meta[key] for key in Assumed.__struct_fields__ if key in t.meta}
    return files.convert(known, Assumed, f"meta of the {t.kind} timeline")
