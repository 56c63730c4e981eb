"""What each kind of work looks like, told apart by people with any colour vision.

Source: palette of Okabe & Ito, "Color Universal Design", 2008.
"""

from typing import NamedTuple

from commsched.timeline import measure


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
EXPOSED = "#B23A00"  # its vermilion, darker, for thin lines

WORDS = {
    **dict.fromkeys(("forward", "fwd"), FORWARD),
    **dict.fromkeys(("backward", "bwd"), BACKWARD),
    **dict.fromkeys(("apply", "merge", "optimizer", "update"), APPLY),
    **dict.fromkeys(("encode", "decode", "combine"), CODEC),
}
NOT_TELLING = {*WORDS, "exchange", "inside", "between", "send", "recv"}


def look(name: str, stream: str) -> Look:
    """Choose the look of an operation from its stream and the first or last word of its name."""
    if measure.is_communication(stream):
        return EXCHANGE
    if stream in measure.CODECS:
        return CODEC
    parts = name.split("/")
    return WORDS.get(parts[0]) or WORDS.get(parts[-1]) or OTHER


def short(name: str) -> str:
    """Shorten a name to what tells it from its neighbours: `b3/exchange` -> `b3`."""
    return "/".join(part for part in name.split("/") if part not in NOT_TELLING) or name
