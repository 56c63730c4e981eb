"""Any legal pair of a collective and a codec, as a method of one phase."""

from functools import lru_cache

import numpy as np

from commsched.arrays import Array
from commsched.coding.codec import Codec, State
from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.exchange.lists import left, taken
from commsched.exchange.method import Method, Phase, copy_seconds, take_gradient
from commsched.exchange.payload import Payload
from commsched.kernels.accumulate import ADD, put
from commsched.kernels.finite_check import finite
from commsched.kernels.merge import Listed, merged
from commsched.machine.model import Device, Group
from commsched.net.bucket import BucketSpec
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Goal, Schedule

LIBRARY = "native+dense"  # the all-reduce of the machine's library
# B moved per B of values to add the unsent part 3, to look for NaN 1, to write zeros 1.
TAKE_TRAFFIC = 5.0
ALONE = Group(ranks=(0,), nodes=(0,))


@lru_cache(maxsize=256)
def route(collective: str, group: Group) -> Schedule:
    """Return the schedule of a collective over a group; cached."""
    return COLLECTIVES[collective](group)


def illegal(schedule: Schedule, codec: Codec) -> str | None:
    """Say why a collective and a codec cannot sum a bucket together; None if they can."""
    if schedule.goal not in (Goal.ALL_REDUCE, Goal.ALL_GATHER):
        return f"collective {schedule.name!r} does not leave the sum on every rank"
    if schedule.library and codec.name != "dense":
        return f"collective {schedule.name!r} sums float32 itself; use codec 'dense' with it"
    if schedule.goal is Goal.ALL_REDUCE and not codec.addable:
        return (
            f"codec {codec.name!r} cannot add packets, but collective {schedule.name!r} needs it;"
            " use 'all-gather' or 'all-gather-direct'"
        )
    if schedule.shared and codec.feedback and not codec.sums_exactly:
        return (
            f"collective {schedule.name!r} computes equal sums on several ranks, which would all"
            f" keep the loss of codec {codec.name!r}; use 'halving-doubling'"
        )
    return None


class Pair(Method):
    """Encode, exchange, decode."""

    codec: Codec

    def __init__(self, collective: str, codec: str) -> None:
        self.codec = CODECS[codec]
        reason = illegal(route(collective, ALONE), self.codec)  # the same for all groups
        if reason:
            raise CommschedError(reason)
        self.name = f"{collective}+{self.codec.name}"
        self.collective = collective
        self.lossless = self.codec.lossless
        self.lists = self.codec.lists

    @property
    def family(self) -> str:
        return self.collective

    @property
    def library(self) -> bool:
        return route(self.collective, ALONE).library

    def at(self, step: int) -> Method:
        codec = self.codec.at(step)
        return self if codec is self.codec else Pair(self.collective, codec.name)

    def phases(self, spec: BucketSpec, group: Group) -> tuple[Phase, ...]:
        schedule = route(self.collective, group)
        if schedule.goal is Goal.ALL_REDUCE:
            return (self._reduce(schedule, spec),)
        return (self._gather(schedule, spec),)

    def _reduce(self, schedule: Schedule, spec: BucketSpec) -> Phase:
        return Phase(
            schedule=schedule,
            payload=Payload.reducing(schedule, self.codec, spec),
            take=take_with_feedback if self.codec.feedback else take_gradient,
            give=give_reduced,
            take_seconds=lambda device: feedback_seconds(self.codec, 4.0 * spec.numel, device),
        )

    def _gather(self, schedule: Schedule, spec: BucketSpec) -> Phase:
        codec, ranks = self.codec, schedule.ranks
        raw = spec.all_raw if codec.lists else 4.0 * spec.numel

        def take(state: State) -> Array:
            if "list" in state:
                return codec.pack(taken(state), spec.numel)
            if codec.feedback:
                return encode_with_feedback(codec, state)
            packet = codec.encode(state["gradient"], state)
            # The sum will overwrite the gradient, so a view would change.
            return packet.copy() if codec.encode_traffic == 0.0 else packet

        def give(state: State, packets: Array) -> None:
            if "list" in state:
                lists = [codec.listed(packet, spec.numel) for packet in packets]
                left(state, merged(lists, spec.numel))
                return
            codec.combine(packets, state["gradient"])
            state["result"] = state["gradient"]

        def take_seconds(device: Device) -> float:
            if codec.encode_traffic == 0.0:
                return copy_seconds(raw)(device)
            rate = codec.rate(device).at(spec.density)
            return rate.fixed + raw * (rate.encode + codec.feedback_rate(device))

        def give_seconds(device: Device) -> float:
            rate = codec.rate(device).at(spec.density)
            wire = codec.nbytes(spec, np.zeros(1, np.int64), np.array([spec.numel]), 1)[0]
            received = rate.per_add + float(wire) * rate.add
            return rate.per_decode + raw * rate.decode + (ranks - 1) * received

        return Phase(
            schedule=schedule,
            payload=Payload.gathered(schedule, codec, spec),
            take=take,
            give=give,
            take_seconds=take_seconds,
            give_seconds=give_seconds,
        )


def give_reduced(state: State, result: Array | Listed) -> None:
    """Store the sum of a reduction, a list if the gradient is one."""
    state["list" if "list" in state else "result"] = result


def lost_of(state: State) -> Array:
    """Return this rank's unsent part of earlier gradients, (n,) float32; zeros at first."""
    if "lost" not in state:
        state["lost"] = np.zeros_like(state["gradient"])
    return state["lost"]


def encode_with_feedback(codec: Codec, state: State) -> Array:
    """Encode the gradient plus the unsent part of earlier ones; keep the new unsent part.

    Source: Karimireddy et al., "Error feedback fixes SignSGD", ICML 2019. Of a sum that is not
    finite, or whose packet is not, the kept part stays unchanged.
    """
    wanted, lost = state["gradient"], lost_of(state)
    with np.errstate(over="ignore", invalid="ignore"):
        packet, whole = codec.encode_kept(wanted, lost, state)
        if whole:
            codec.subtract(packet, wanted)
            whole = not codec.may_overflow or finite(wanted)
    if whole:
        state["gradient"], state["lost"] = lost, wanted  # the sum is written over the old one
    return packet


def take_with_feedback(state: State) -> Array:
    """Add the unsent part of earlier gradients; the exchange keeps its own losses."""
    gradient, lost = state["gradient"], lost_of(state)
    if finite(gradient):
        put(lost, gradient, ADD)
        lost.fill(0)
    return gradient


def feedback_seconds(codec: Codec, nbytes: float, device: Device) -> float:
    """Return the seconds of feedback before an exchange whose hops keep their own losses."""
    return nbytes * TAKE_TRAFFIC / device.bandwidth if codec.feedback else 0.0
