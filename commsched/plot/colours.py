"""The colours of each kind of work, distinct for people with any colour vision.

Source: palette of Okabe & Ito, "Color Universal Design", 2008.
"""

from typing import NamedTuple

from commsched.timeline import measure
from commsched.timeline.names import label


class Look(NamedTuple):
    """A kind of work and its colours."""

    legend: str
    fill: str
    text: str


FORWARD = Look("forward", "#56B4E9", "black")
BACKWARD = Look("backward", "#0072B2", "white")
APPLY = Look("apply", "#009E73", "white")
CODEC = Look("encode, decode", "#CC79A7", "black")
EXCHANGE = Look("communication", "#F0C35A", "black")  # its orange, lighter, so that hatches show
OTHER = Look("other compute", "#999999", "black")
LOOKS = (FORWARD, BACKWARD, APPLY, OTHER, CODEC, EXCHANGE)
EXPOSED = "#B23A00"  # the palette's vermilion, darker, for thin lines

BY_WORK = {"forward": FORWARD, "backward": BACKWARD, "apply": APPLY, "codec": CODEC}


def look(name: str, stream: str) -> Look:
    """Choose the look of an operation from its stream and its name."""
    if measure.is_communication(stream):
        return EXCHANGE
    return CODEC if stream in measure.CODECS else BY_WORK.get(label(name).work, OTHER)
