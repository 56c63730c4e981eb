"""A static mask that all ranks share: ranks send the values under the mask, and no indices."""

from functools import partial

import numpy as np

from commsched.arrays import Array
from commsched.coding.codec import State
from commsched.coding.registry import CODECS
from commsched.exchange.method import Choice, Method, Phase
from commsched.exchange.pair import route
from commsched.exchange.payload import Payload
from commsched.exchange.registry import METHODS
from commsched.kernels.select import COUNTED_BYTES, count_nonzero
from commsched.machine.device import scattered_bytes
from commsched.machine.model import Device, Group
from commsched.net.bucket import BucketSpec


class Mask(Method):
    """Gather the gradient's values under the mask, sum them in a ring, scatter the sum.

    The state's "mask", (m,) ascending indices, is equal on all ranks: a strategy that prunes may
    set it; else it has every element that was ever non-zero in a sum. In each step the ranks agree
    whether all non-zeros lie inside (8 B each way, the mask's size or -1). If not, the whole
    gradient is sent densely, and the mask grows by the sum's support, which all ranks see.
    Source: Singh & Bhatele, "Exploiting sparsity in pruned neural networks to optimize large model
    training" (SAMO), IPDPS 2023.
    """

    name = "mask"
    lossless = True
    static = True

    def phases(self, spec: BucketSpec, group: Group) -> tuple[Choice, ...]:
        def then(size: float) -> Phase:
            return _whole(spec, group) if size < 0 else _masked(spec, int(size), group)

        size = round(_expected(spec))
        return (Choice(name="values", vote=_vote, agree="min", expected=size, then=then),)

    def kept(self, spec: BucketSpec) -> float:
        return 8.0 * _expected(spec)


def _vote(state: State) -> float:
    """Return the size of the mask, or -1 if it does not cover this rank's gradient."""
    if "mask" not in state:
        return -1.0
    mask, values = state["mask"], state["gradient"]
    covered = count_nonzero(values.take(mask)) == count_nonzero(values)
    return float(len(mask)) if covered else -1.0


def _expected(spec: BucketSpec) -> float:
    """Return the size of the mask after many steps; only a mask law leaves elements out."""
    static = [law.density if law.law == "mask" else 1.0 for law, _, _, _ in spec.pieces]
    return float(np.sum(np.diff(spec.bounds) * static))


def _vote_seconds(spec: BucketSpec, size: int, device: Device) -> float:
    """Return the s to take the values under the mask, and to count the gradient's non-zeros."""
    return (_taken_bytes(spec, size) + COUNTED_BYTES * spec.numel) / device.bandwidth


def _taken_bytes(spec: BucketSpec, size: int) -> float:
    """Return the B moved to read the mask's indices and their values, and to write the values."""
    return 8.0 * size + scattered_bytes(size, spec.numel) + 4.0 * size


def _masked(spec: BucketSpec, size: int, group: Group) -> Phase:
    schedule = route("ring", group)

    def give(state: State, total: Array) -> None:
        values = state["gradient"]
        values.fill(0)
        values[state["mask"]] = total
        state["result"] = values

    def give_seconds(device: Device) -> float:  # lines are read, changed and written
        moved = _taken_bytes(spec, size) + scattered_bytes(size, spec.numel)
        return (moved + 4.0 * spec.numel) / device.bandwidth

    return Phase(
        schedule=schedule,
        payload=Payload.reducing(schedule, CODECS["dense"], BucketSpec.uniform(size)),
        take=lambda state: state["gradient"].take(state["mask"]),
        give=give,
        vote_seconds=partial(_vote_seconds, spec, size),
        take_seconds=lambda device: _taken_bytes(spec, size) / device.bandwidth,
        give_seconds=give_seconds,
    )


def _whole(spec: BucketSpec, group: Group) -> Phase:
    schedule = route("ring", group)

    def give(state: State, total: Array) -> None:
        seen = total != 0
        if "mask" in state:
            seen[state["mask"]] = True
        state["mask"] = np.flatnonzero(seen)
        state["result"] = total

    return Phase(
        schedule=schedule,
        payload=Payload.reducing(schedule, CODECS["dense"], spec),
        give=give,
        vote_seconds=partial(_vote_seconds, spec, round(_expected(spec))),
        give_seconds=lambda device: 4.0 * spec.numel / device.bandwidth,
    )


METHODS.add("mask")(Mask())
