"""Prices of exchanges and methods: played move by move, or by formula where moves are too many."""

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from commsched.arrays import Floats
from commsched.cost.closed import Cost, closed
from commsched.cost.play import Played, play
from commsched.exchange.method import Choice, Method, resolved
from commsched.exchange.pair import route
from commsched.exchange.payload import Payload
from commsched.exchange.vote import voting
from commsched.machine.model import Group, Machine
from commsched.net.bucket import BucketSpec
from commsched.schedule.rounds import Schedule

# Moves that are still played: at most 5 ms, or 20 ms where every round has its own pattern.
LIMIT = 2**19


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price of a method, without packing and unpacking its bucket."""

    encode: float  # s before the exchanges
    exchange: float  # s, with the coding at every hop
    decode: float  # s after them
    sent: float  # B handed to MPI, mean of the ranks
    messages: float  # handed to MPI, mean of the ranks

    @property
    def seconds(self) -> float:
        return self.encode + self.exchange + self.decode

    def exposed(self, hidden: float) -> float:
        """Seconds that are left where `hidden` seconds of other work run beside it."""
        return max(0.0, self.seconds - hidden)


def exchange(
    schedule: Schedule,
    payload: Payload,
    machine: Machine,
    group: Group,
    start: Floats,
    *,
    later: bool = False,
    limit: int = LIMIT,
    rest: Floats | float = 0.0,
) -> Played:
    """Price one exchange whose members arrive at `start`, (p,) s, the machine's start-up included.

    `later`: another exchange of the launch has just ended, so that all threads are awake. `rest`
    [s]: for how long each member's port has been idle, see `play`. Played up to `limit` moves;
    beyond, the closed form from the latest start on, with mean bytes and messages for every member.
    `native` has only the latter.
    """
    cost: Cost | None = None
    moves = 1 if schedule.library else moves_up_to(schedule, limit)
    if schedule.library:
        cost = native(schedule, payload, machine, group)
    elif moves > limit:
        cost = closed(schedule, payload, machine, group)
    # A measured all-reduce includes its start-up; without messages nothing starts.
    whole = (schedule.library and bool(machine.native)) or moves == 0
    startup = machine.restart if later else machine.startup
    begin = start if whole or group.size == 1 else start + startup
    if cost is None:
        return play(schedule, payload, machine, group, begin, rest)
    return Played(
        np.full(len(start), begin.max() + cost.seconds),
        np.full(len(start), cost.sent),
        np.full(len(start), round(cost.messages), np.int64),
    )


def votes(machine: Machine, group: Group, start: Floats, later: bool = False) -> Played:
    """Price an agreement on one number, without the members' own work."""
    phase = voting(group, lambda state: 0.0)
    return exchange(phase.schedule, phase.payload, machine, group, start, later=later)


@lru_cache(maxsize=4096)
def moves_up_to(schedule: Schedule, limit: int) -> int:
    """Count the moves of a schedule, but stop once there are more than `limit`."""
    moves = 0
    for rnd in schedule.rounds():
        moves += len(rnd.src)
        if moves > limit:
            break
    return moves


def native(schedule: Schedule, payload: Payload, machine: Machine, group: Group) -> Cost:
    """Price the MPI library's own all-reduce: measured on all ranks of the machine, if possible.

    Otherwise it costs the cheaper of recursive doubling and halving-doubling, between which MPICH
    chooses by size (Thakur, Rabenseifner & Gropp, IJHPCA 19(1), 2005); Open MPI's tuned component
    has both to choose from. The payload counts as sent once, because the real messages are unknown.
    """
    if group.size == 1:
        return Cost(0.0)
    whole = payload.wire(np.array([0]), np.array([schedule.blocks]), 1)
    nbytes = float(whole[0])
    if machine.native and group.size == machine.size:
        return Cost(measured(machine.native, nbytes), nbytes, 1.0)
    assert payload.spec is not None
    seconds = []
    for name in ("doubling", "halving-doubling"):
        other = route(name, group)
        found = closed(other, Payload.reducing(other, payload.codec, payload.spec), machine, group)
        assert found is not None
        seconds.append(found.seconds)
    return Cost(min(seconds), nbytes, 1.0)


def measured(points: tuple[tuple[float, float], ...], nbytes: float) -> float:
    """Seconds at `nbytes` from (bytes, seconds) points: a power law between two.

    Below the first point its seconds hold (latency); past the last point seconds grow with the
    bytes (bandwidth).
    """
    useful = [(x, y) for x, y in points if x > 0 and y > 0]
    if not useful:
        return points[0][1]
    place = bisect_left(useful, nbytes, key=lambda point: point[0])
    if place == 0:
        return useful[0][1]
    before, low = useful[place - 1]
    if place == len(useful):
        return low * nbytes / before
    after, high = useful[place]
    between = low * math.exp(math.log(high / low) * math.log(nbytes / before, after / before))
    return min(max(between, min(low, high)), max(low, high))  # in spite of rounding


def price(
    method: Method, spec: BucketSpec, machine: Machine, group: Group, *, limit: int = LIMIT
) -> Price:
    """Price one launch of a method whose members start together, phase after phase.

    A choice counts as its votes and its expected phase.
    """
    device, start = machine.device, np.zeros(group.size)
    encode = seconds = decode = sent = messages = 0.0
    for number, phase in enumerate(method.phases(spec, group)):
        played, later = [], number > 0
        if isinstance(phase, Choice):
            played.append(votes(machine, group, start, later))
        phase = resolved(phase)
        encode += phase.take_seconds(device)
        decode += phase.give_seconds(device)
        schedule, payload = phase.schedule, phase.payload
        played.append(exchange(schedule, payload, machine, group, start, later=later, limit=limit))
        seconds += sum(float(part.end.max()) for part in played)
        seconds += phase.within_seconds(device)
        sent += sum(float(part.sent.mean()) for part in played)
        messages += sum(float(part.messages.mean()) for part in played)
    return Price(encode=encode, exchange=seconds, decode=decode, sent=sent, messages=messages)


def method_seconds(method: Method, spec: BucketSpec, machine: Machine, group: Group) -> float:
    """Return the seconds of one launch of a method, without packing its bucket."""
    return price(method, spec, machine, group).seconds
