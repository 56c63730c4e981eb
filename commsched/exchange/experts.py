"""Methods that send tokens to the ranks of their experts, and back, in uneven packets.

They make no sum, so `METHODS` does not list them; the strategy `expert` names them.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.coding.codec import Codec, State
from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.exchange.method import Method, Phase, copy_seconds
from commsched.exchange.pair import route
from commsched.exchange.payload import Payload
from commsched.kernels.device import numbers
from commsched.kernels.modules import module_of, on_host
from commsched.machine.device import FREE
from commsched.machine.model import CodecRate, Device, Group
from commsched.net.bucket import BucketSpec, Slots

PREFIX = "experts:"
ROUTES = ("all-to-all", "all-to-all-rails")
HEAD = 4  # B of a row's count


class ToExperts(Method):
    """Send the filled slots of a bucket's rows to their rank: `experts:COLLECTIVE+CODEC`.

    A bucket has a row for each expert (or, on the way back, for each rank and expert): the number
    of tokens in it, then its slots. A packet holds the counts of the rows for one rank, and the
    tokens of their filled slots, coded; empty slots do not travel. The result is a bucket of rows
    in the order of the ranks that sent them.
    Source: dispatch and combine by all-to-all, and capacity: Lepikhin et al., "GShard", ICLR 2021;
    a packet as GShard sends it has the empty slots, too.
    """

    codec: Codec

    def __init__(self, collective: str, codec: str) -> None:
        self.collective, self.codec = collective, CODECS[codec]
        self.name = f"{PREFIX}{collective}+{self.codec.name}"
        self.lossless = self.codec.lossless
        if collective not in ROUTES:
            raise CommschedError(
                f"collective {collective!r} sends no tokens to experts; allowed: "
                + ", ".join(ROUTES)
            )
        if self.codec.feedback or self.codec.stateful or not self.codec.fixed:
            raise CommschedError(
                f"method {self.name!r}: codec {self.codec.name!r} drops numbers of tokens; allowed"
                " is what writes each of them, such as 'dense', 'bf16' or 'quant:8'"
            )

    @property
    def family(self) -> str:
        return PREFIX + self.collective

    def phases(self, spec: BucketSpec, group: Group) -> tuple[Phase, ...]:
        assert spec.slots is not None
        slots, ranks = spec.slots, group.size
        schedule = route(self.collective, group)
        values = 4.0 * sum(slots.taken) * slots.width  # B, the mean of the ranks
        rows = len(slots.taken)

        def sizes() -> Floats:
            tokens = np.array([slots.counts(m, ranks).sum(axis=1) for m in range(ranks)]).ravel()
            return HEAD * rows / ranks + self._coded(spec, tokens * slots.width)

        def take(state: State) -> list[Array]:
            table = state["gradient"].reshape(ranks, -1, slots.row)
            places = range(0, table.size, table[0].size)  # keys of the rows' random numbers
            return [
                self._packed(some, slots.width, state, start)
                for some, start in zip(table, places, strict=True)
            ]

        def give(state: State, packets: list[Array]) -> None:
            table = state["gradient"].reshape(ranks, -1, slots.row)
            for some, packet in zip(table, packets, strict=True):
                self._unpack(packet, some, slots)
            state["result"] = state["gradient"]

        def seconds(rate: float, fixed: float, device: Device) -> float:
            return ranks * fixed + values * rate if rate else copy_seconds(values)(device)

        def take_seconds(device: Device) -> float:
            rate = self._rate(device)
            return seconds(rate.encode, rate.fixed, device)

        def give_seconds(device: Device) -> float:
            rate = self._rate(device)
            return seconds(rate.decode, rate.per_decode, device)

        return (
            Phase(
                schedule=schedule,
                payload=Payload(codec=self.codec, sizes=sizes),
                take=take,
                give=give,
                take_seconds=take_seconds,
                give_seconds=give_seconds,
            ),
        )

    def _coded(self, spec: BucketSpec, values: Ints) -> Floats:
        """Return the bytes of packets, by their numbers of values."""
        return self.codec.nbytes(spec, np.zeros_like(values), values, 1)

    def _rate(self, device: Device) -> CodecRate:
        return FREE if self.codec.encode_traffic == 0.0 else self.codec.rate(device).again()

    def _packed(self, rows: Array, width: int, state: State, start: int) -> Array:
        """Write the filled slots of some rows, (rows, 1 + slots x width), as a packet of bytes."""
        module = module_of(rows)
        counts = on_host(rows[:, 0]).astype(np.int64)
        tokens = [row[1 : 1 + n * width] for row, n in zip(rows, counts.tolist(), strict=True)]
        head = module.ascontiguousarray(rows[:, 0]).view(np.uint8)
        if not counts.any():
            return head
        body = self.codec.encode(module.concatenate(tokens), state, start)
        return module.concatenate([head, body.view(np.uint8)])

    def _unpack(self, packet: Array, rows: Array, slots: Slots) -> None:
        """Fill rows with the counts and the tokens of a packet."""
        module, packet = module_of(rows), packet.view(np.uint8)
        size = HEAD * len(rows)
        if len(packet) < size:
            raise CommschedError(f"a packet of {len(packet)} B does not hold {len(rows)} counts")
        # A received packet may begin anywhere in memory.
        rows[:, 0] = numbers(packet[:size], np.float32)
        counts = on_host(rows[:, 0])
        if not ((counts >= 0) & (counts <= slots.slots)).all():
            raise CommschedError(f"a packet has rows of other than 0 to {slots.slots} tokens")
        values = module.empty(int(counts.sum()) * slots.width, np.float32)
        if len(values):
            self.codec.decode(numbers(packet[size:], np.uint8), values)
        at = 0
        for row, n in zip(rows, counts.astype(np.int64).tolist(), strict=True):
            row[1 : 1 + n * slots.width] = values[at : at + n * slots.width]
            at += n * slots.width


@lru_cache(maxsize=256)
def find_to_experts(name: str) -> ToExperts:
    """Return the method that a name with the prefix stands for."""
    collective, _, codec = name.removeprefix(PREFIX).partition("+")
    return ToExperts(collective, codec or "dense")


def routes(group: Group, codec: str) -> Sequence[Method]:
    """List the methods that a group can use."""
    found: list[Method] = []
    for collective in ROUTES:
        try:
            route(collective, group)
        except CommschedError:
            continue  # the collective does not fit this shape of machine
        found.append(ToExperts(collective, codec))
    return found
