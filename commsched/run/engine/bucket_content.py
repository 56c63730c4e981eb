"""The content of a bucket: dense gradients, rows, and the remainders of replaced launches."""

from collections.abc import Sequence
from math import inf

import numpy as np

from commsched.arrays import Array
from commsched.coding.codec import State
from commsched.exchange.lists import left
from commsched.exchange.registry import find_method
from commsched.kernels.merge import Listed
from commsched.kernels.modules import on_host
from commsched.plan.model import Plan


def takes_lists(plan: Plan, launch: int) -> bool:
    """Tell whether a launch sends a list of non-zeros if its bucket is handed over as rows."""
    own = plan.launches[launch]
    return find_method(own.method).takes_lists(plan.group(own))


def unsent_of(plan: Plan, launch: int, states: Sequence[State]) -> list[Array]:
    """Take, once, the unsent gradients of the launches that this one replaces."""
    own = plan.launches[launch]
    if not own.since:
        return []
    found: list[Array] = []
    for old, state in zip(plan.launches, states, strict=True):
        before = old.payload == own.payload and old.since < own.since
        kept = "lost" in state and find_method(old.method).keeps
        if before and kept and old.pieces == own.pieces:
            found.append(state.pop("lost"))
    return found


def clamps(plan: Plan, launch: int, values: Array) -> bool:
    """Tell whether the sum of such values over all ranks may exceed the codec's range."""
    own = plan.launches[launch]
    codec = find_method(own.method).codec
    if codec is None or codec.largest == inf or not len(values):
        return False
    most = max(float(values.max()), -float(values.min()))
    return most * plan.group(own).size > codec.largest


def not_finite(plan: Plan, step: int, launch: int, state: State, own: slice | None) -> str:
    """Return a sentence that names the tensor with values that are not finite.

    A codec could drop or hide such values. own: the run of the bucket that this rank fills; None:
    the whole bucket.
    """
    if "list" in state:
        left(state, Listed(*state.pop("list")))
    values = on_host(state["gradient"])
    first, stop, _ = (own or slice(None)).indices(len(values))
    at = first + int(np.flatnonzero(~np.isfinite(values[first:stop]))[0])
    pieces = plan.launches[launch].pieces
    ends = np.cumsum([stop - start for _, start, stop in pieces])
    name, _, stop = pieces[int(np.searchsorted(ends, at, side="right"))]
    place = stop - int(ends[ends > at][0]) + at
    return (
        f"step {step}: the {plan.launches[launch].payload} of tensor {name!r} has {values[at]} at"
        f" element {place}; only finite numbers can be summed"
    )
