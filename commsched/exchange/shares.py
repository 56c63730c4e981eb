"""Contiguous shares of a bucket: all ranks push to a share's owner, which sums; then all pull."""

from commsched.arrays import Array, Floats, Ints
from commsched.coding.codec import State
from commsched.coding.registry import CODECS
from commsched.exchange.lists import joined, left
from commsched.exchange.method import Phase, give_decoded
from commsched.exchange.payload import Payload
from commsched.machine.model import Device
from commsched.net.bucket import BucketSpec
from commsched.schedule.rounds import Schedule


def push(schedule: Schedule, codec: str, spec: BucketSpec, cuts: Ints) -> Phase:
    """Sum share r, elements [cuts[r], cuts[r + 1]), at rank r, as the state's "share".

    schedule: a reduce-scatter of as many blocks as ranks. "share" is a view of the gradient, or a
    list if the gradient is one.
    """

    def give(state: State, share: Array) -> None:
        state["share"] = share

    return Phase(
        name="push",
        schedule=schedule,
        payload=Payload(codec=CODECS[codec], cuts=cuts, spec=spec),
        give=give,
    )


def pull(schedule: Schedule, codec: str, spec: BucketSpec, cuts: Ints) -> Phase:
    """Gather the summed shares of all ranks into the gradient, which becomes the result."""
    written, ranks, raw = CODECS[codec], schedule.ranks, spec.all_raw
    dense = give_decoded(written, cuts)

    def sizes() -> Floats:
        return written.nbytes(spec, cuts[:-1], cuts[1:], ranks)

    def take(state: State) -> Array:
        if "list" in state:
            start, stop = cuts[state["rank"] :][:2].tolist()
            return written.pack(state["share"], stop - start)
        return written.encode(state["share"], state)

    def give(state: State, packets: list[Array]) -> None:
        if "list" in state:
            left(state, joined(written, packets, cuts.tolist()))
        else:
            dense(state, packets)

    def take_seconds(device: Device) -> float:
        rate = written.rate(device).at(spec.filled(ranks))
        return rate.fixed + raw / ranks * rate.encode if rate.encode else 0.0

    def give_seconds(device: Device) -> float:
        rate = written.rate(device).at(spec.filled(ranks))
        decode = rate.decode or 2 / device.bandwidth  # copying dense values into place
        return ranks * rate.per_decode + raw * decode

    return Phase(
        name="pull",
        schedule=schedule,
        payload=Payload(codec=written, sizes=sizes),
        take=take,
        give=give,
        take_seconds=take_seconds,
        give_seconds=give_seconds,
    )
