"""Decoding of operations' names, for readers that have a file but no plan.

A timeline file knows an operation by its name. Code that has the plan looks the name up in
`Strategy.operations`, where the launch, phase, layer and microbatch are fields.
"""

from functools import cache
from typing import NamedTuple

WORK = {  # word in a name -> kind of work; names may come from other programs
    **dict.fromkeys(("forward", "fwd"), "forward"),
    **dict.fromkeys(("backward", "bwd"), "backward"),
    **dict.fromkeys(("apply", "merge", "optimizer", "update"), "apply"),
    **dict.fromkeys(("encode", "decode", "combine"), "codec"),
}
COMMON = {*WORK, "exchange", "inside", "between", "send", "recv"}


class Label(NamedTuple):
    """The decoded name of an operation."""

    work: str  # "forward", "backward", "apply", "codec", or "" if the name does not tell
    short: str  # label of the operation among its neighbours: "b3" for "b3/exchange"


def decision_key(step: int, operation: str) -> str:
    """Return the key of an operation's decision in a step."""
    return f"{step}/{operation}"


@cache
def label(name: str) -> Label:
    """Decode the name of an operation by its first or last word."""
    words = name.split("/")
    work = WORK.get(words[0]) or WORK.get(words[-1], "")
    return Label(work, "/".join(word for word in words if word not in COMMON) or name)
