"""The measurement of links by rings: inside nodes, between nodes, shared ports, slow nodes."""

import time
from dataclasses import dataclass, field, replace

import numpy as np
from mpi4py import MPI

from commsched.machine.model import Group, Link, Nic
from commsched.run.engine.probe import Arena, ProbeExchanges, Silent, sleeping_barrier
from commsched.run.job import agree
from commsched.run.job.clock import now

SIZES = (256, 4096, 32768, 131072, 524288, 2 * 2**20)  # B per message
LEAST = 4  # sizes that are measured even on slow links
REPEATS = 4  # least repeats of a measurement
TURNS, MOST = 2, 4  # measurements of all sizes, at least and at most
PAIR = 131072  # B of the message that detects a slow node
SLOW = 1.15  # a node is slow if its pairs take this multiple of the median time
SHARED = 1.2  # lanes share a port if all together take this multiple of the time of one
MESSAGES = 32  # that are sent at once to measure the overhead of one
ARRIVED = 5e-3  # s after which sent messages have arrived
LUMP = 2e-3  # s of bytes, more than a burst
TELLING = 1e-4  # s, a shorter burst may be noise
TURN = 65536.0  # B that Linux passes to a port at once for one TCP connection (GSO_MAX_SIZE)
NOTHING = Link(latency=0.0, overhead=0.0, per_byte=0.0)


@dataclass(kw_only=True)
class Links:
    """Link classes, start-up, burst and shared port of a machine."""

    inside: Link = NOTHING
    between: Link = NOTHING
    startup: float = 0.0
    burst: float = 0.0
    nic: Nic | None = None
    overrides: dict[int, Link] = field(default_factory=dict)


def measure(comm: MPI.Intracomm, group: Group, arena: Arena, budget: float) -> Links:
    """Measure all link classes in about `budget` s; ranks that do not take part sleep."""
    node, found = group.nodes[comm.rank], Links()
    nodes = len(group.members)
    local = ProbeExchanges(comm.Split(node, comm.rank), arena)
    share = budget / (1 if nodes == 1 else 3)
    found.inside, found.startup = curve(local, share)
    sleeping_barrier(comm)
    if nodes == 1:
        found.between = found.inside
        return found
    slow = _slow_nodes(comm, group, arena, share / 4)
    first = [members[0] for members in group.members]
    usual = [r for r in first if group.nodes[r] not in slow]
    found.between, found.startup = _among(comm, usual, arena, share)
    for number in slow:
        pair = [usual[0], first[number]]
        found.overrides[number] = _among(comm, pair, arena, share / 4)[0]
    found.burst = _burst(comm, usual[:2], arena, found.between, share / 4)
    found.nic = _shared_port(comm, group, usual, arena, found.between, share / 4)
    found.between = without_burst(found.between, found.burst, 2 * (len(usual) - 1))
    for number, link in found.overrides.items():
        found.overrides[number] = without_burst(link, found.burst, 2)
    return found


def without_burst(link: Link, burst: float, hops: int) -> Link:
    """Return a link with the curve of ports that have not rested.

    Each measured exchange of `hops` messages of n bytes began after a rest, in which the ports had
    saved `burst` s: the messages took hops w - burst, or nothing if they fitted into the burst.
    """

    def unrested(nbytes: float, seconds: float) -> float:
        port = nbytes * link.per_byte
        fits = hops * port <= burst + hops * seconds
        return max(seconds, port) if fits else seconds + burst / hops

    points = tuple((nbytes, unrested(nbytes, seconds)) for nbytes, seconds in link.points)
    return replace(link, points=points)


def _among(
    comm: MPI.Intracomm, ranks: list[int], arena: Arena, budget: float
) -> tuple[Link, float]:
    """Measure a link class and start-up between some ranks; return both on all ranks."""
    color = 0 if comm.rank in ranks else MPI.UNDEFINED
    part = comm.Split(color, comm.rank)
    link, startup = NOTHING, 0.0
    if color == 0:
        link, startup = curve(ProbeExchanges(part, arena), budget)
    sleeping_barrier(comm)
    points = np.zeros((len(SIZES), 2))
    points[: len(link.points)] = link.points or np.zeros((0, 2))
    terms = [startup, link.latency, link.overhead, link.per_byte, len(link.points)]
    told = agree.broadcast_numbers(ranks[0], [*terms, *points.ravel()], comm)
    curve_ = np.array(told[5:]).reshape(-1, 2)[: int(told[4])]
    link = Link(
        latency=told[1],
        overhead=told[2],
        per_byte=told[3],
        points=tuple((float(n), float(seconds)) for n, seconds in curve_),
    )
    return link, told[0]


def curve(exchanges: ProbeExchanges, budget: float) -> tuple[Link, float]:
    """Measure a link class and the start-up of an exchange by rings of several sizes.

    An exchange of h hops of n bytes takes S + h (L + 2 o + w(n)) from rest. Rings of tiny messages
    that follow each other without one take h (L + 2 o). w is a measured curve, because a single
    slope would be far off.
    """
    if exchanges.comm.size == 1:
        return NOTHING, 0.0
    share = budget / (len(SIZES) + 1)
    hops = exchanges.rounds("ring")
    times = _ring_times(exchanges, budget, share / TURNS)
    sizes = SIZES[: len(times)]
    hop = min(exchanges.without_rest(SIZES[0]), times[0]) / hops
    startup = max(times[0] - hops * hop, 0.0)
    # A longer message cannot take less time: noise is levelled.
    wire = np.maximum.accumulate([(t - startup) / hops - hop for t in times])
    wire -= wire[0]
    points = [(0.0, 0.0), *zip(map(float, sizes[1:]), map(float, wire[1:]), strict=True)]
    overhead = min(_overhead(exchanges.comm), hop / 2)
    link = Link(
        latency=hop - 2 * overhead,
        overhead=overhead,
        per_byte=float(wire[-1] - wire[-2]) / (sizes[-1] - sizes[-2]),
        points=tuple(points),
    )
    return link, startup


def _ring_times(exchanges: ProbeExchanges, budget: float, share: float) -> list[float]:
    """Return the s of a ring by size, the least of several turns: a disturbance only lengthens it.

    Each measurement takes about `share` s. Turns go on while the two longest rings take as long.
    """
    times: list[float] = []
    for n in SIZES:
        if len(times) >= LEAST and REPEATS * times[-1] * n / SIZES[len(times) - 1] > budget / 2:
            break  # larger messages only repeat the bandwidth
        times.append(exchanges.ring(n, share))
    for turn in range(1, MOST):
        if turn >= TURNS and times[-2] < times[-1]:
            break
        times = [min(t, exchanges.ring(n, share)) for n, t in zip(SIZES, times, strict=False)]
    return times


def _overhead(comm: MPI.Intracomm) -> float:
    """Return the seconds that a rank spends on a small message, sending or receiving it.

    Pairs of ranks send MESSAGES at once, and receive them when all have come.
    Source: Culler et al., "Assessing fast network interfaces", 1996.
    """
    partner = comm.rank ^ 1
    paired = partner < comm.size
    room = np.zeros((2, MESSAGES, SIZES[0]), np.uint8)
    pairs: list[list[MPI.Prequest]] = [[], []]
    for number in range(MESSAGES if paired else 0):
        pairs[0].append(comm.Send_init(room[0, number], partner, number))
        pairs[1].append(comm.Recv_init(room[1, number], partner, number))
    times = []
    for _ in range(1 + REPEATS):  # the first one opens the connection
        sleeping_barrier(comm)
        start = now()
        MPI.Prequest.Startall(pairs[0])
        sent = now() - start
        sleeping_barrier(comm)
        time.sleep(ARRIVED)
        start = now()
        MPI.Prequest.Startall(pairs[1])
        MPI.Request.Waitall(pairs[1])
        times.append((sent + now() - start) / (2 * MESSAGES))
        MPI.Request.Waitall(pairs[0])
    for request in (*pairs[0], *pairs[1]):
        request.Free()
    found = float(np.median(times[1:])) if paired else np.inf
    return float(min(agree.gather_numbers(found, comm)))


def _burst(comm: MPI.Intracomm, ranks: list[int], arena: Arena, link: Link, budget: float) -> float:
    """Return the seconds of bytes that a port lets through at once after a rest.

    Two ranks send each other n bytes in T(n) = T(0) + n G - b; so b = T(0) + T(2 n) - 2 T(n).
    """
    if len(ranks) < 2 or not link.per_byte:
        return 0.0
    part = comm.Split(0 if comm.rank in ranks else MPI.UNDEFINED, comm.rank)
    numel = min(int(LUMP / link.per_byte), SIZES[-1]) // 4
    found = 0.0
    if comm.rank in ranks:
        exchanges = ProbeExchanges(part, arena)
        least, one, two = (
            exchanges.seconds("doubling", Silent(), n, budget / 3)
            for n in (SIZES[0] // 4, numel, 2 * numel)
        )
        found = least + two - 2 * one
    sleeping_barrier(comm)
    found = agree.broadcast_numbers(ranks[0], [found], comm)[0]
    return found if found > TELLING else 0.0


def _slow_nodes(comm: MPI.Intracomm, group: Group, arena: Arena, budget: float) -> list[int]:
    """Return the nodes whose exchanges with both neighbours are slower than the median.

    With two nodes, no slow one can be identified.
    """
    first = [members[0] for members in group.members]
    nodes = len(first)
    if nodes == 2:
        return []
    pairs = np.zeros(nodes)  # s of each node with its successor
    for number in range(nodes):
        ranks = [first[number], first[(number + 1) % nodes]]
        part = comm.Split(0 if comm.rank in ranks else MPI.UNDEFINED, comm.rank)
        seconds = 0.0
        if comm.rank in ranks:
            seconds = ProbeExchanges(part, arena).ring(PAIR, budget / nodes)
        sleeping_barrier(comm)
        pairs[number] = agree.broadcast_numbers(ranks[0], [seconds], comm)[0]
    best = np.minimum(pairs, np.roll(pairs, 1))
    slow = np.flatnonzero(best > SLOW * np.median(best))
    return [int(n) for n in slow] if len(slow) <= nodes - 2 else []


def _shared_port(
    comm: MPI.Intracomm, group: Group, usual: list[int], arena: Arena, alone: Link, budget: float
) -> Nic | None:
    """Return the port that the ranks of a node share, from all lanes at once and one alone.

    All lanes begin together; the least of some turns counts: a disturbance only lengthens it.
    """
    lanes = min(len(group.members[group.nodes[rank]]) for rank in usual)
    if lanes == 1 or len(usual) == 1:
        return None
    place = group.members[group.nodes[comm.rank]].index(comm.rank)
    taking = place < lanes and group.members[group.nodes[comm.rank]][0] in usual
    part = comm.Split(place if taking else MPI.UNDEFINED, comm.rank)
    together = comm.Split(0 if taking else MPI.UNDEFINED, comm.rank)
    sizes = [n for n, _ in alone.points[-2:]]  # the slope is taken between them
    seconds = [0.0, 0.0]
    if taking:
        assert isinstance(together, MPI.Intracomm)
        lane, each = ProbeExchanges(part, arena), budget / 2 / MOST
        turns = [[lane.ring(int(n), each, together) for n in sizes] for _ in range(MOST)]
        seconds = np.min(turns, axis=0).tolist()
    sleeping_barrier(comm)
    shorter, longer = (agree.largest(s, comm) for s in seconds)
    hops = 2 * (len(usual) - 1)
    per_byte = max(longer - shorter, 0.0) / hops / (sizes[1] - sizes[0])
    if per_byte < SHARED * alone.per_byte:
        return None
    return Nic(per_node=1, per_byte=per_byte / lanes, turn=TURN)
