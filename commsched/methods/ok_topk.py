"""Ok-Topk: `ok-topk:SHARE`, lists to balanced regions, the largest of their sums to all."""

from collections.abc import Callable
from itertools import pairwise
from math import isfinite, nan
from typing import Any

import numpy as np

from commsched.arrays import Array
from commsched.codecs.topk import MOST, RENEW, TopK
from commsched.coding import parameters as read
from commsched.coding.codec import State
from commsched.coding.coordinates import open_coordinates, pack_coordinates
from commsched.coding.packet import HEADER
from commsched.coding.registry import CODECS
from commsched.exchange.method import Choice, Ends, Method, Phase, copy_seconds
from commsched.exchange.pair import lost_of, route
from commsched.exchange.payload import Payload
from commsched.exchange.registry import METHODS
from commsched.kernels import select
from commsched.kernels.accumulate import ADD, put
from commsched.kernels.finite_check import finite
from commsched.kernels.merge import Listed, ends, merged
from commsched.kernels.modules import module_of
from commsched.machine.model import Device, Group
from commsched.net.bucket import BucketSpec
from commsched.schedule.rounds import Goal, Schedule

STANDARD = "ok-topk:0.01"
CROWDED = 2.0  # regions with more sums than this multiple of the mean are dealt out
REGIONS = 64  # steps for which regions are used; source: Li & Hoefler, PPoPP 2022


class OkTopK(Method):
    """Each rank sends its largest values to owners of regions, which send the largest sums to all.

    The local thresholds and the threshold of the sums are used for 32 steps, regions for 64: on
    average over ranks, each region holds equally many of the largest values. Unlike the paper, the
    threshold of the sums rises earlier if more than 1.5 k sums came: to the k-th of these, which
    all ranks know. A rank keeps all of its own values that are not in the common sum. If a region
    holds more than twice its part of the largest sums, they are dealt out evenly before they go to
    all ranks. A rank sends 2 k to 6 k words (p - 1) / p per step for k = SHARE n. Beyond that, as
    in the paper, all ranks learn all sums in the steps that renew the threshold: up to k p words,
    so up to k p / 32 per step on average, 4 k on 128 ranks; the price has these, too. Good
    for many ranks if their largest values overlap.
    Source: Li & Hoefler, "Near-optimal sparse allreduce for distributed deep learning", PPoPP 2022,
    arXiv 2201.07598.
    """

    lossless = False

    def __init__(self, share: float) -> None:
        self.name = f"ok-topk:{read.written(share)}"
        self._share = share
        found = CODECS[f"topk:{read.written(share)}:reused"]
        assert isinstance(found, TopK)
        self._codec = found

    def phases(self, spec: BucketSpec, group: Group) -> tuple[Phase | Choice, ...]:
        ranks, numel = group.size, spec.numel
        count = float(np.ceil(self._share * numel))
        gather, spread = route("all-gather-direct", group), route("all-to-all", group)
        raw, rate = 4.0 * numel, self._codec.rate

        def choose(device: Device) -> float:
            speed = rate(device)
            return speed.fixed + raw * (speed.encode + self._codec.feedback_rate(device))

        return (
            Phase(
                name="regions",
                schedule=gather,
                payload=_lists(gather, 8.0 * (ranks + 1) / REGIONS - HEADER),
                take=lambda state: self._take_regions(state, numel),
                give=_give_regions,
                take_seconds=choose,
            ),
            Phase(
                name="push",
                schedule=spread,
                payload=_lists(spread, 8.0 * count / ranks),
                take=_push,
                give=_sum,
                take_seconds=copy_seconds(8.0 * count),
                give_seconds=copy_seconds(8.0 * count),
            ),
            Phase(
                name="threshold",
                schedule=gather,
                payload=_lists(gather, 4.0 * count / RENEW - HEADER),
                take=_take_threshold,
                give=lambda state, packets: _give_threshold(state, packets, int(count)),
                give_seconds=copy_seconds(4.0 * count * ranks / RENEW),
            ),
            _balance(group, count),
            Phase(
                name="pull",
                schedule=gather,
                payload=_lists(gather, 8.0 * count / ranks),
                take=_pull,
                give=lambda state, packets: _leave(state, packets, numel, int(count)),
                take_seconds=copy_seconds(8.0 * count / ranks),
                give_seconds=copy_seconds(0.5 * raw),  # zeros written
            ),
        )

    def _take_regions(self, state: State, numel: int) -> Array:
        """Select the largest; if the regions are renewed, propose the ends of equal shares."""
        gradient, lost = state["gradient"], lost_of(state)
        with np.errstate(over="ignore", invalid="ignore"):
            put(lost, gradient, ADD)
        index = self._codec.select(gradient, state, 0)
        state["ok own"] = Listed(index, gradient.take(index))
        state["ok finite"] = finite(gradient)
        if "ok cuts" in state and int(state["step"]) % REGIONS:
            return np.zeros(0, np.uint8)
        every, total = np.arange(1, int(state["ranks"])), len(index) or numel
        inner = every * total // int(state["ranks"])
        if len(index):
            inner = index.take(module_of(index).asarray(inner)).tolist()
        return np.array([0, *inner, numel], np.int64)


def _lists(schedule: Schedule, nbytes: float) -> Payload:
    """Return the payload of coordinate lists, each of `nbytes` B after its header."""
    sizes = np.full(1, HEADER + nbytes)
    return Payload(codec=CODECS["coo"], sizes=lambda: sizes, repeat=schedule.blocks)


def _give_regions(state: State, packets: list[Array]) -> None:
    """Return the mean of all ranks' proposals."""
    if len(packets[0]):
        every = np.array([packet.view(np.int64).tolist() for packet in packets])
        state["ok cuts"] = tuple((every.sum(axis=0) // len(packets)).tolist())


def _push(state: State) -> list[Array]:
    (index, values), cuts = state["ok own"], state["ok cuts"]
    return [
        pack_coordinates(index[a:b], values[a:b], first)
        for (a, b), first in zip(pairwise(ends(index, cuts)), cuts[:-1], strict=True)
    ]


def _region(state: State) -> tuple[int, int]:
    rank = int(state["rank"])
    return state["ok cuts"][rank], state["ok cuts"][rank + 1]


def _sum(state: State, packets: list[Array]) -> None:
    first, stop = _region(state)
    lists = [Listed(*open_coordinates(packet, stop - first)) for packet in packets]
    state["ok sum"] = merged(lists, stop - first)


def _take_threshold(state: State) -> Array:
    """Return the region's sums if the threshold is renewed."""
    return state["ok sum"].values.copy() if _renews(state) else np.zeros(0, np.float32)


def _renews(state: State) -> bool:
    """Tell whether all ranks tell each other their sums."""
    known = isfinite(state.get("ok threshold", nan))  # not after sums that overflowed
    return not known or int(state["step"]) % RENEW == 0


def _give_threshold(state: State, packets: list[Array], count: int) -> None:
    """Return the k-th largest of all sums; always on the first step of the bucket."""
    if _renews(state):
        sums = np.concatenate([packet.view(np.float32) for packet in packets])
        state["ok threshold"] = select.threshold_of(sums, count)


def _chosen(state: State) -> float:
    """Select the largest of the region's sums, and count them."""
    index, values = state["ok sum"]
    at = select.above(values, state["ok threshold"])
    state["ok kept"] = Listed(index.take(at) + _region(state)[0], values.take(at))
    return float(len(at))


def _balance(group: Group, count: float) -> Choice:
    """Deal the largest sums out if one rank has too many of them.

    A rank with m of T sums sends m (p - 1) to all ranks; if dealt out before, (m + T) (p - 1) / p.
    That is less for m > T / (p - 1), so for more than twice the mean on 3 ranks or more.
    """
    ranks = group.size
    every = np.arange(ranks, dtype=np.int64)
    deal = route("all-to-all", group)
    nothing = Schedule(
        name="nothing",
        goal=Goal.ALL_GATHER,
        ranks=ranks,
        blocks=ranks,
        rounds=lambda: iter(()),
        owner=every,
    )

    def phase(schedule: Schedule, take: Callable[[State], Array], **more: Any) -> Phase:
        return Phase(
            name="balance",
            schedule=schedule,
            payload=_lists(schedule, 8.0 * count / ranks**2),
            take=take,
            **more,
        )

    def then(most: float) -> Phase:
        if ranks > 2 and most > CROWDED * count / ranks:
            return phase(deal, _deal, give=_dealt)
        return phase(
            nothing,
            lambda state: np.zeros(0, np.uint8),
            give=lambda state, packets: None,
            ends=lambda rank: Ends([rank], [rank]),
        )

    return Choice(name="balance", vote=_chosen, agree="max", expected=count / ranks, then=then)


def _deal(state: State) -> list[Array]:
    """Deal equally many of this rank's sums to each rank, in order."""
    index, values = state["ok kept"]
    ends = (np.arange(state["ranks"] + 1) * len(index) // int(state["ranks"])).tolist()
    return [pack_coordinates(index[a:b], values[a:b]) for a, b in pairwise(ends)]


def _dealt(state: State, packets: list[Array]) -> None:
    """Join the received lists: regions ascend with ranks, so the result ascends."""
    lists = [open_coordinates(packet, len(state["gradient"])) for packet in packets]
    state["ok kept"] = Listed(*map(np.concatenate, zip(*lists, strict=True)))


def _pull(state: State) -> Array:
    return pack_coordinates(*state["ok kept"])


def _leave(state: State, packets: list[Array], numel: int, count: int) -> None:
    """Write the common sums over the gradient; keep this rank's values that are not in them."""
    lists = [open_coordinates(packet, numel) for packet in packets]
    every = np.concatenate([sums for _, sums in lists])
    if len(every) > MOST * count:
        state["ok threshold"] = select.threshold_of(every, count)
    wanted, own = state["gradient"], state["ok own"].index
    if state["ok finite"]:
        state["gradient"], state["lost"] = state["lost"], wanted  # the sums go over the old one
    values = state["gradient"]
    values.fill(0)
    for index, sums in lists:  # without zeros
        values[index] = sums
    if state["ok finite"]:
        wanted[own[values.take(own) != 0]] = 0
    state["result"] = values


@METHODS.family(STANDARD)
def ok_topk(parameters: list[str]) -> OkTopK:
    """Read SHARE."""
    read.at_most(parameters, 1)
    return OkTopK(read.share(parameters[0]))
