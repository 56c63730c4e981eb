"""Any legal pair of a collective and a codec, as a method of one phase."""

from functools import lru_cache

import numpy as np

from commsched.codecs import CODECS, Array, Codec, State
from commsched.collectives import COLLECTIVES
from commsched.errors import CommschedError
from commsched.machine import Device, Group
from commsched.methods.base import Method, Phase, copy_seconds
from commsched.methods.payload import Payload
from commsched.plan.bucket import BucketSpec
from commsched.schedule import Goal, Schedule


@lru_cache(maxsize=256)
def route(collective: str, group: Group) -> Schedule:
    """The schedule of a collective over a group; the same object for the same question."""
    return COLLECTIVES[collective](group)


def illegal(schedule: Schedule, codec: Codec) -> str | None:
    """Why a collective and a codec do not sum a bucket together; None when they do."""
    if schedule.goal not in (Goal.ALL_REDUCE, Goal.ALL_GATHER):
        return f"collective {schedule.name!r} does not leave the sum on every rank by itself"
    if schedule.rounds is None and codec.name != "dense":
        return f"collective {schedule.name!r} sums float32 itself; use codec 'dense' with it"
    if schedule.goal is Goal.ALL_REDUCE and not codec.addable:
        return (
            f"codec {codec.name!r} cannot add packets, but collective {schedule.name!r} needs it;"
            " use 'all-gather'"
        )
    return None


class Direct(Method):
    """Encode, exchange, decode."""

    def __init__(self, collective: str, codec: str) -> None:
        self.name = f"{collective}+{codec}"
        self.collective = collective
        self.codec = CODECS[codec]
        self.lossless = self.codec.lossless

    def phases(self, spec: BucketSpec, group: Group) -> tuple[Phase, ...]:
        schedule = route(self.collective, group)
        reason = illegal(schedule, self.codec)
        if reason:
            raise CommschedError(reason)
        if schedule.goal is Goal.ALL_REDUCE:
            return (self._reduce(schedule, spec),)
        return (self._gather(schedule, spec),)

    def _reduce(self, schedule: Schedule, spec: BucketSpec) -> Phase:
        def give(state: State, result: Array) -> None:
            state["result"] = result

        return Phase(
            name="",
            schedule=schedule,
            payload=Payload.reducing(schedule, self.codec, spec),
            take=lambda state: state["gradient"],
            give=give,
            take_seconds=lambda device: 0.0,
            give_seconds=lambda device: 0.0,
        )

    def _gather(self, schedule: Schedule, spec: BucketSpec) -> Phase:
        codec, ranks, raw = self.codec, schedule.ranks, 4.0 * spec.numel

        def take(state: State) -> Array:
            packet = codec.encode(state["gradient"], state)
            # A view would be overwritten when the sum is written over the gradient.
            return packet.copy() if codec.encode_traffic == 0.0 else packet

        def give(state: State, packets: Array) -> None:
            state["result"] = combine(codec, packets, state["gradient"])

        def take_seconds(device: Device) -> float:
            if codec.encode_traffic == 0.0:
                return copy_seconds(raw)(device)
            rate = codec.rate(device)
            return rate.fixed + raw * rate.encode

        def give_seconds(device: Device) -> float:
            rate = codec.rate(device)
            wire = codec.nbytes(spec, np.zeros(1, np.int64), np.array([spec.numel]), 1)[0]
            return ranks * rate.fixed + raw * rate.decode + (ranks - 1) * float(wire) * rate.add

        return Phase(
            name="",
            schedule=schedule,
            payload=Payload.gathered(schedule, codec, spec),
            take=take,
            give=give,
            take_seconds=take_seconds,
            give_seconds=give_seconds,
        )


def combine(codec: Codec, packets: list[Array], out: Array) -> Array:
    """Sum packets in rank order into `out` (n,) float32."""
    codec.decode(packets[0], out)
    for packet in packets[1:]:
        codec.add(packet, out)
    return out
