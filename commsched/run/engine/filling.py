"""What a bucket is filled with: dense gradients, rows, and what replaced launches have kept."""

from collections.abc import Sequence

import numpy as np

from commsched.coding.codec import State
from commsched.exchange import rows
from commsched.exchange.lists import left
from commsched.exchange.registry import find_method
from commsched.kernels.accumulate import ADD, put
from commsched.kernels.merge import Listed
from commsched.kernels.modules import on_host
from commsched.plan.model import Plan


def take_rows(plan: Plan, launch: int, state: State, parts: dict[int, rows.Part]) -> None:
    """Put rows that were handed over into a bucket: as a list if the method takes lists.

    parts: the rows of pieces, by the number of the piece.
    """
    own = plan.launches[launch]
    state.pop("list", None)
    if not parts:
        return
    if find_method(own.method).takes_lists(plan.group(own)):
        places = [here for *_, here in own.places]
        state["list"] = rows.as_list(parts, state["gradient"], places)
    else:
        rows.write(parts, state["gradient"])


def take_over(plan: Plan, launch: int, states: Sequence[State]) -> None:
    """Add to a gradient what the launches that this one replaces have kept of theirs."""
    own = plan.launches[launch]
    if not own.since:
        return
    for old, state in zip(plan.launches, states, strict=True):
        before = old.payload == own.payload and old.since < own.since
        kept = "lost" in state and find_method(old.method).keeps
        if before and kept and old.pieces == own.pieces:
            put(state.pop("lost"), states[launch]["gradient"], ADD)


def not_finite(plan: Plan, step: int, launch: int, state: State, own: slice | None) -> str:
    """Name the tensor whose values are not finite, before a codec drops or hides them.

    own: the run of the bucket that this rank fills; None: all of it.
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
