"""Prices of exchanges and methods: played move by move, or by formula for many moves."""

import math
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from commsched.arrays import Floats
from commsched.coding.codec import Codec
from commsched.cost.closed import closed
from commsched.cost.pattern import once
from commsched.cost.play import ExchangeRun, Played, moves_up_to, play_all
from commsched.exchange.method import Choice, Method, Phase, resolved
from commsched.exchange.pair import route
from commsched.exchange.payload import Payload
from commsched.exchange.vote import voting
from commsched.machine.group_links import group_links
from commsched.machine.library import Algorithm, algorithm_of
from commsched.machine.model import Group, Machine
from commsched.net.bucket import BucketSpec
from commsched.schedule.rounds import Schedule

# Most moves that are played: 5 ms, or 20 ms if every round has its own pattern.
LIMIT = 2**19
CHEAP = 2**16  # moves that are played for many methods and rates: 1 ms
SIZES = 256  # of modelled sums of a library that a machine keeps


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
        """Return the seconds that remain if `hidden` seconds of other work overlap the exchange."""
        return max(0.0, self.seconds - hidden)


def exchange(
    schedule: Schedule,
    payload: Payload,
    machine: Machine,
    group: Group,
    start: Floats,
    *,
    limit: int = LIMIT,
    rest: Floats | float = 0.0,
    taken: Algorithm | None = None,
) -> Played:
    """Price one exchange whose members arrive at `start`, (p,) s, the machine's start-up included.

    `rest` [s]: for how long each member's port has been idle, see `play`. Played up to `limit`
    moves; beyond, the closed form from the latest start on, with mean bytes and messages for
    every member. `native` costs as `library.Algorithm` says, or its measured seconds from the
    latest start on, which include the start-up. `taken`: the algorithm, if another machine
    decides.
    """
    asked = ToPrice(schedule, payload, machine, group, start, rest, taken)
    return exchanges([asked], limit)[0]


class ToPrice(NamedTuple):
    """An exchange to price; see `exchange`."""

    schedule: Schedule
    payload: Payload
    machine: Machine
    group: Group
    start: Floats
    rest: Floats | float = 0.0
    taken: Algorithm | None = None


class _Route(NamedTuple):
    """A schedule to play from `begin` on, (p,) s, and what makes the exchange's costs of it."""

    schedule: Schedule
    payload: Payload
    machine: Machine
    group: Group
    begin: Floats
    rest: Floats | float
    limit: int
    then: Callable[[Played], Played] | None = None


def exchanges(asked: Sequence[ToPrice], limit: int = LIMIT) -> list[Played]:
    """Price exchanges, each alone as `exchange` does; those of one schedule are played together."""
    routes = [_route(one, limit) for one in asked]
    played = _routed([route for route in routes if isinstance(route, _Route)])
    return [next(played) if isinstance(route, _Route) else route for route in routes]


def _route(asked: ToPrice, limit: int) -> _Route | Played:
    """Return the schedule to play for an exchange, or its costs if nothing has to be played."""
    schedule, payload, machine, group, start, rest, taken = asked
    if group.size == 1 or (not schedule.library and moves_up_to(schedule, 0) == 0):
        return Played(start, np.zeros(len(start)), np.zeros(len(start), np.int64))
    begin = start + machine.startup
    if not schedule.library:
        return _Route(schedule, payload, machine, group, begin, rest, limit)
    taken = taken or taken_by_library(schedule, payload, machine, group)
    assert taken is not None
    if not (machine.native and group.size == machine.size):
        return _taken(taken, payload, machine, group, begin + taken.base, rest, limit)
    # It was measured with rested ports: what a port lacks of a burst comes later.
    nbytes, lacks = _whole(payload), machine.burst - np.minimum(rest, machine.burst)
    late = start + np.minimum(lacks, nbytes * machine.between.per_byte)
    largest, _ = machine.native[-1]
    end = late.max() + measured(machine.native, min(nbytes, largest))
    modelled = _modelled(taken, payload, machine, group, nbytes)
    if nbytes > largest:  # what the algorithm's model takes more than for the largest measured sum
        least = _modelled(taken, payload, machine, group, largest)
        end += modelled.end.max() - least.end.max()
    return replace(modelled, end=np.full(len(start), end), rest=0.0)


def _modelled(
    taken: Algorithm, payload: Payload, machine: Machine, group: Group, nbytes: float
) -> Played:
    """Return the costs of a sum of `nbytes` bytes by a library's algorithm, as it is modelled."""
    known = machine.derived.setdefault(("library", taken, group), {})
    assert isinstance(known, dict)
    if nbytes not in known:
        if len(known) == SIZES:
            known.pop(next(iter(known)))
        own = replace(payload, spec=BucketSpec.uniform(max(1, round(nbytes / 4))))
        start = np.zeros(group.size)
        [known[nbytes]] = _routed([_taken(taken, own, machine, group, start, 0.0, 0)])
    found = known[nbytes]
    assert isinstance(found, Played)
    return found


def taken_by_library(
    schedule: Schedule, payload: Payload, machine: Machine, group: Group
) -> Algorithm | None:
    """Return the algorithm of the machine's library; None if a schedule is not the library's."""
    if not schedule.library:
        return None
    return algorithm_of(machine, group, _whole(payload))


def library_bytes(phase: Phase, machine: Machine, group: Group) -> Floats:
    """Return the bytes that each member sends in a library's sum, (p,), by its modelled algorithm.

    A library does not report what it sends: measured and predicted timelines both use this number.
    """
    start = np.zeros(group.size)
    return exchange(phase.schedule, phase.payload, machine, group, start).sent


def _whole(payload: Payload) -> float:
    """Return the bytes of a library's payload, which is float32."""
    assert payload.spec is not None
    return 4.0 * payload.spec.numel


def _routed(routes: Sequence[_Route]) -> Iterator[Played]:
    """Play routes of up to their limit of moves; apply the closed forms of others."""
    found: dict[int, Played] = {}
    together: dict[tuple[Schedule, Group], list[int]] = {}
    for i, one in enumerate(routes):
        schedule, payload, machine, group, begin, _, limit, _ = one
        if len({len(members) for members in group.members}) > 1:
            limit = max(limit, CHEAP)  # formulas add up the slowest links of all rounds
        if moves_up_to(schedule, limit) > limit:
            cost = closed(schedule, payload, machine, group)
            if cost is not None:
                found[i] = Played(
                    np.full(len(begin), begin.max() + cost.seconds),
                    np.full(len(begin), cost.sent),
                    np.full(len(begin), round(cost.messages), np.int64),
                    formula=True,
                )
                continue
        together.setdefault((schedule, group), []).append(i)
    for (schedule, group), where in together.items():
        runs = [ExchangeRun(*routes[i][1:3], *routes[i][4:6]) for i in where]
        found |= zip(where, play_all(schedule, group, runs), strict=True)
    for i, one in enumerate(routes):
        yield found[i] if one.then is None else one.then(found[i])


def _taken(
    taken: Algorithm,
    payload: Payload,
    machine: Machine,
    group: Group,
    begin: Floats,
    rest: Floats | float,
    limit: int,
) -> _Route:
    """Return what to play of a library's algorithm for members that begin at `begin`, (p,) s."""
    assert payload.spec is not None
    schedule, pipeline, numel = route(taken.collective, group), taken.pipeline, payload.spec.numel
    on = taken.on(machine)
    if pipeline is None:
        own = Payload.reducing(schedule, payload.codec, payload.spec)
        return _Route(schedule, own, on, group, begin, rest, limit)
    piece = min(-(-numel // pipeline.trees), math.ceil(pipeline.piece / 4))
    own = _first_piece(schedule, payload.codec, piece)
    left = 4.0 * max(numel - pipeline.trees * piece, 0)
    near, far = once(on, group, group_links)
    across = max(link.per_byte for link in far)
    per_byte = taken.both(pipeline.between * across, pipeline.inside * near.per_byte)
    pieces = numel / max(piece, 1)

    def then(played: Played) -> Played:
        return Played(
            played.end + left * per_byte,
            played.sent * pieces,
            np.ceil(played.messages * pieces).astype(np.int64),
            formula=played.formula,
        )

    return _Route(schedule, own, on, group, begin, rest, limit, then)


@lru_cache(maxsize=64)
def _first_piece(schedule: Schedule, codec: Codec, numel: int) -> Payload:
    """Return the first piece of a pipelined tree: most payloads have equal ones."""
    return Payload.reducing(schedule, codec, BucketSpec.uniform(numel))


def votes(machine: Machine, group: Group, start: Floats, rest: Floats | float = 0.0) -> Played:
    """Price an agreement on one number, without the members' own work; see `exchange`."""
    phase = voting(group, lambda state: 0.0)
    return exchange(phase.schedule, phase.payload, machine, group, start, rest=rest)


def _votes_alone(machine: Machine, group: Group) -> Played:
    return votes(machine, group, np.zeros(group.size))


def measured(points: tuple[tuple[float, float], ...], nbytes: float) -> float:
    """Return the seconds at `nbytes` from (bytes, seconds) points: a power law between two.

    Below the first point its seconds hold (latency); past the last point, the last seconds.
    """
    useful = [(x, y) for x, y in points if x > 0 and y > 0]
    if not useful:
        return points[0][1]
    place = bisect_left(useful, nbytes, key=lambda point: point[0])
    if place == 0:
        return useful[0][1]
    before, low = useful[place - 1]
    if place == len(useful):
        return low
    after, high = useful[place]
    between = low * math.exp(math.log(high / low) * math.log(nbytes / before, after / before))
    return min(max(between, min(low, high)), max(low, high))  # guards against rounding


def price(
    method: Method, spec: BucketSpec, machine: Machine, group: Group, *, limit: int = LIMIT
) -> Price:
    """Price one launch of a method whose members start together, phase after phase.

    A choice counts as its votes and its expected phase.
    """
    steps = price_steps(method, spec, machine, group)
    one: Price | ToPrice | None = next(steps)
    found: Price | None = None
    while one is not None:
        if isinstance(one, ToPrice):
            one = steps.send(exchanges([one], limit)[0])
        else:
            found, one = one, next(steps, None)
    assert found is not None
    return found


def price_steps(
    method: Method, spec: BucketSpec, machine: Machine, group: Group
) -> Generator[Price | ToPrice, Played | None, None]:
    """Yield the price of a method so far, phase by phase, and the exchanges to price.

    The caller sends the costs of each exchange back; it may price the exchanges of several methods
    and buckets together.
    """
    device, start = machine.device, np.zeros(group.size)
    encode = seconds = decode = sent = messages = 0.0
    for phase in method.phases(method.seen(spec, group), group):
        played = []
        votes = isinstance(phase, Choice)
        phase = resolved(phase)
        if votes:
            played.append(once(machine, group, _votes_alone))
            seconds += phase.vote_seconds(device)
        encode += phase.take_seconds(device)
        decode += phase.give_seconds(device)
        yield Price(encode=encode, exchange=seconds, decode=decode, sent=sent, messages=messages)
        schedule, payload = phase.schedule, phase.payload
        own = yield ToPrice(schedule, payload, machine, group, start)
        assert own is not None
        played.append(own)
        seconds += sum(float(part.end.max()) for part in played)
        seconds += phase.within_seconds(device)
        sent += sum(float(part.sent.mean()) for part in played)
        messages += sum(float(part.messages.mean()) for part in played)
    yield Price(encode=encode, exchange=seconds, decode=decode, sent=sent, messages=messages)


def method_seconds(method: Method, spec: BucketSpec, machine: Machine, group: Group) -> float:
    """Return the seconds of one launch of a method, without packing its bucket."""
    return price(method, spec, machine, group).seconds
