"""Textbook formulas: oracles of `play` on equal links, and the fast path at scale.

Symbols of all formulas: p ranks; n [B] of the whole packet; L, o [s], G [s/B] of the link, LogGP
(Alexandrov et al., SPAA 1995); e(m), a(m), d(m) [s] to encode, add and decode a message of m B.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from commsched.cost.closed_terms import Circle, Load, MessageSize, Site, sampled
from commsched.cost.closed_tree import TreeSite
from commsched.cost.pattern import once
from commsched.cost.wire import Wire
from commsched.exchange.payload import Payload
from commsched.machine.model import Group, Machine
from commsched.schedule.rounds import Schedule


class Cost(NamedTuple):
    """The cost of an exchange; bytes and messages are means over its members."""

    seconds: float
    sent: float = 0.0  # B
    messages: float = 0.0


Form = Callable[[Site, Load], Cost]


def closed(schedule: Schedule, payload: Payload, machine: Machine, group: Group) -> Cost | None:
    """Return a schedule's cost by formula, from start to its last rank's end, or None.

    Holds for members that start together: then exact on equal links with blocks of equal size,
    unless a formula says "at most". Otherwise `play` ends no later than this after the last start,
    and no earlier than this after the first: the error is at most the spread of the starts. If
    links differ, the error is up to 15 % on the shipped machines at 2 to 16 nodes (a test), unless
    a formula says "at most"; packets of unequal size count as their mean.
    """
    form = FORMS.get(schedule.name)
    if form is None:
        return None
    if group.size == 1:
        return Cost(0.0)
    site = once(machine, group, TreeSite if machine.levels else Site)
    return form(site.coded(payload.rate(machine.device)), Load(schedule, payload))


def ring(site: Site, load: Load) -> Cost:
    """Ring all-reduce.

        t = 2 (p - 1) (L + 2 o + n G / p + e(n / p)) + (p - 1) (a(n / p) + d(n / p))

    Source: Patarasuk & Yuan, JPDC 69(2), 2009.
    Holds for equal links; else the sum of the hops on the way, or the port of the slowest.
    """
    p = site.ranks
    up, down = load.size(1 / p, np.arange(1, p)), load.size(1 / p, np.full(p - 1, p))
    return _chain(site, site.circle(), (up, True), (down, False))


def ring_reduce_scatter(site: Site, load: Load) -> Cost:
    """Ring reduce-scatter.

        t = (p - 1) (L + 2 o + n G / p + e(n / p) + a(n / p))

    Source: Patarasuk & Yuan, JPDC 69(2), 2009. Holds as `ring` does.
    """
    p = site.ranks
    return _chain(site, site.circle(), (load.size(1 / p, np.arange(1, p)), True))


def ring_all_gather(site: Site, load: Load) -> Cost:
    """Ring all-gather; n [B] of all ranks' packets together.

        t = (p - 1) (L + 2 o + n G / p + e(n / p) + d(n / p))

    Source: Thakur, Rabenseifner & Gropp, IJHPCA 19(1), 2005. Holds as `ring` does.
    """
    p = site.ranks
    return _chain(site, site.circle(), (load.size(1 / p, np.full(p - 1, p)), False))


def hierarchical(site: Site, load: Load) -> Cost:
    """Rings of K_1 ranks, then of K_2, ..., of K_l; the links of ring i are L_i, o_i, G_i.

        t = sum over i of 2 (K_i - 1) (L_i + 2 o_i + n_i G_i + e(n_i)) + (K_i - 1) (a(n_i) + d(n_i))

    n_i [B] = n / (K_1 ... K_i); G_i [s/B] is k times that of a port which k messages share.
    Source: Cho et al., "BlueConnect", MLSys 2019. Holds as `ring` does on each level.
    """
    return _rings(site, load, site.rings())


def torus(site: Site, load: Load) -> Cost:
    """Rings along each direction of a torus in turn: as `hierarchical`, with its source."""
    return _rings(site, load, site.axes())


def _rings(site: Site, load: Load, rings: list[tuple[int, Circle]]) -> Cost:
    """Reduce-scatter around one ring of each kind after the other, and all-gather back."""
    costs, inner = [Cost(0.0)], 1
    for places, circle in rings:
        up = load.size(1 / (inner * places), inner * np.arange(1, places))
        down = load.size(1 / (inner * places), np.full(places - 1, site.ranks))
        costs.append(_chain(site, circle, (up, True), (down, False)))
        inner *= places
    return _sum(*costs)


def doubling(site: Site, load: Load) -> Cost:
    """Recursive doubling.

        t = log2 p (L + 2 o + n G + e(n) + a(n))

    At most, where p is no power of two: two hops, two codings and an addition more.
    Source: Thakur, Rabenseifner & Gropp, IJHPCA 19(1), 2005.
    Holds as `ring` does; else every round is as slow as its slowest link.
    """
    q = 1 << (site.ranks.bit_length() - 1)
    costs = [
        _round(
            site,
            site.apart(d * _stretch(site), q),
            load,
            1.0,
            d * site.ranks / q,
            True,
            last=2 * d == q,
        )
        for d in _distances(q)
    ]
    return _folded(site, load, costs)


def halving_doubling(site: Site, load: Load) -> Cost:
    """Recursive halving, then recursive doubling.

        t = 2 log2 p (L + 2 o) + (p - 1) / p 2 n G + sum over k = 1..log2 p of
            2 e(n / 2^k) + a(n / 2^k) + d(n / 2^k)

    At most, where p is no power of two: two hops, two codings and an addition of n more.
    Source: Rabenseifner, ICCS 2004. Holds as `doubling` does.
    """
    p = site.ranks
    q = 1 << (p.bit_length() - 1)
    costs = []
    before = None
    for d in _distances(q):
        wire = site.apart(d * _stretch(site), q)
        costs.append(_round(site, wire, load, 0.5 / d, d * p / q, True))
        costs.append(_round(site, wire, load, 0.5 / d, p, False, last=before != wire))
        before = wire  # of the round that follows on the way back
    return _folded(site, load, costs)


def tree(site: Site, load: Load) -> Cost:
    """Binomial reduce to one rank, then binomial broadcast.

        t = log2 p (2 (L + 2 o + n G + e(n)) + a(n) + d(n))

    At most, where p is no power of two: log2 p rounded up.
    Source: Thakur, Rabenseifner & Gropp, IJHPCA 19(1), 2005. Holds as `doubling` does.
    """
    p = site.ranks
    costs = []
    for d in _distances(p):
        children = range(d, p, 2 * d)
        wire, share = site.apart(d, 1), len(children) / p
        merged = sum(min(d, p - child) for child in children) / len(children)
        costs.append(_round(site, wire, load, 1.0, merged, True, share))
        costs.append(_round(site, wire, load, 1.0, p, False, share))
    return _sum(*costs)


def direct(site: Site, load: Load) -> Cost:
    """Rotated reduce-scatter, then rotated all-gather; messages in a half are independent.

        t = 2 (L + 2 o + m G) + a(m) + d(m)
          + (p - 2) (max(m G + o, a(m)) + max(m G + o, d(m))),     m = n / p, e = 0

    With e > 0 coding and merging take turns in the order of the rounds, as in a ring.
    Source: Thakur, Rabenseifner & Gropp, IJHPCA 19(1), 2005 (pairwise exchange).
    Holds for equal links; else the ports of the ranks that leave their node, in every round.
    """
    return _sum(direct_reduce_scatter(site, load), direct_all_gather(site, load))


def direct_reduce_scatter(site: Site, load: Load) -> Cost:
    """Return the cost of the first half of `direct`, with its a(m), source and validity."""
    return _rotation(site, load, 1 / site.ranks, 1, add=True)


def direct_all_gather(site: Site, load: Load) -> Cost:
    """Return the cost of the second half of `direct`, with its d(m), source and validity."""
    return _rotation(site, load, 1 / site.ranks, site.ranks, add=False)


def all_to_all(site: Site, load: Load) -> Cost:
    """Rotated all-to-all of p blocks per rank; a half of `direct` without coding, m = n / p^2."""
    return _rotation(site, load, 1 / site.ranks**2, 1, add=False)


def all_to_all_rails(site: Site, load: Load) -> Cost:
    """Rail-aligned all-to-all among N nodes of K lanes, whose link is L', o', G'.

        t = (K - 1) (m G + o) + (N - 1) (L' + 2 o' + K m G' + (K - 1) (m G + o)) + L + o

    m = n / p^2; of one node or one lane as `all_to_all`, and with the coding of a rotation.
    Source: NVIDIA, "Doubling all2all performance with NCCL 2.12", 2022. Holds if ranks fill nodes.
    """
    p, lanes, nodes = site.ranks, site.lanes, site.nodes
    if min(lanes, nodes) == 1:
        return all_to_all(site, load)
    one = np.array([1])
    block, run = load.size(1 / p**2, one), load.size(lanes / p**2, one)
    code, merge = site.coding.code(block), float(site.coding.merge(block, False)[0])
    inside = last = between = 0.0
    for rounds, ahead in sampled(lanes):
        near = site.mates(ahead)
        port = float(near.port(block.wire)[0])
        inside += rounds * max(port, code + merge)
        last = max(last, float(near.hop(block.wire)[0]) - port)
    work = site.coding.code(run) + float(site.coding.merge(run, False)[0])
    for rounds, ahead in sampled(nodes):
        far = site.peers(ahead)
        busy = float(max(far.hop(run.wire)[0] + work, far.port(run.wire)[0]))
        between += rounds * busy
        last = max(last, float(far.drained(run.wire)[0]) - busy)
    sent = (nodes - 1) * float(run.wire[0]) + nodes * (lanes - 1) * float(block.wire[0])
    return Cost(nodes * inside + between + last, sent, nodes * lanes - 1)


FORMS: dict[str, Form] = {
    "all-gather": ring_all_gather,
    "all-gather-direct": direct_all_gather,
    "all-to-all": all_to_all,
    "all-to-all-rails": all_to_all_rails,
    "direct": direct,
    "doubling": doubling,
    "halving-doubling": halving_doubling,
    "hierarchical": hierarchical,
    "reduce-scatter": ring_reduce_scatter,
    "reduce-scatter-direct": direct_reduce_scatter,
    "ring": ring,
    "torus": torus,
    "tree": tree,
}


def _sum(*costs: Cost) -> Cost:
    return Cost(*map(sum, zip(*costs, strict=True)))


def _distances(q: int) -> list[int]:
    """Return the powers of two below q."""
    return [1 << k for k in range((q - 1).bit_length())]


def _stretch(site: Site) -> int:
    """Return by how much neighbours may move apart once every other rank has been folded in."""
    return 1 if site.ranks & (site.ranks - 1) == 0 else 2


def _chain(site: Site, circle: Circle, *halves: tuple[MessageSize, bool]) -> Cost:
    """Rounds around a circle, each waiting for the one before; halves: sizes (rounds,), add.

    Data travels from hop to hop; the slowest port, or the processor, serves every round.
    """
    travel = serve = last = sent = 0.0
    rounds = 0
    for size, add in halves:
        if len(size.wire) == 0:
            continue
        work = site.coding.code(size) + site.coding.merge(size, add)
        hops = [wire.hop(size.wire) for wire in circle.wires]
        most = np.max([wire.drained(size.wire[-1:]) for wire in circle.wires])
        busy = np.maximum(work, np.max([wire.port(size.wire) for wire in circle.wires], axis=0))
        travel += float((work + np.average(hops, axis=0, weights=circle.counts)).sum())
        travel += float(circle.headstart([hop[-1] for hop in hops], len(halves)))
        serve += float(busy.sum())
        last = float(max(most, np.max([hop[-1] for hop in hops]) + work[-1]) - busy[-1])
        sent += float(size.wire.sum())
        rounds += len(size.wire)
    return Cost(max(travel, serve + last), sent, rounds)


def _round(
    site: Site,
    wire: Wire,
    load: Load,
    share: float,
    merged: float,
    add: bool,
    senders: float = 1.0,
    *,
    last: bool = False,
) -> Cost:
    """Return the cost of one round: a share of the members send sums of `merged` ranks on average.

    The next round may begin while the port is still busy; after the last round on its links the
    port must be free.
    """
    low = int(merged)
    nbytes, raw = load.size(share, np.array([low, low + 1]))
    size = MessageSize(nbytes[:1] + (merged - low) * (nbytes[1:] - nbytes[:1]), raw)
    port = wire.drained if last else wire.port
    hop = wire.hop(size.wire) + site.coding.merge(size, add)
    seconds = site.coding.code(size) + np.maximum(hop, port(size.wire))
    return Cost(float(seconds[0]), senders * float(size.wire[0]), senders)


def _folded(site: Site, load: Load, costs: list[Cost]) -> Cost:
    """Rounds among the largest power of two q of ranks; p - q fold in before and out after."""
    p = site.ranks
    q = 1 << (p.bit_length() - 1)
    total = _sum(*costs)
    active = Cost(total.seconds, total.sent * q / p, total.messages * q / p)
    if p == q:
        return active
    idle = (p - q) / p
    fold_in = _round(site, site.apart(1, 1), load, 1.0, 1, True, idle)
    return _sum(fold_in, active, _round(site, site.apart(1, 1), load, 1.0, p, False, idle))


def _rotation(site: Site, load: Load, share: float, merged: int, add: bool) -> Cost:
    """p - 1 independent rounds, in round k to the k-th rank ahead.

    In every round some rank's message crosses between nodes. With encoding, messages wait for each
    other along a chain, which includes every crossing on its way.
    """
    p = site.ranks
    size = load.size(share, np.array([merged]))
    code, merge = site.coding.code(size), float(site.coding.merge(size, add)[0])
    inside = float(site.inside.hop(size.wire)[0])
    travel = serve = last = 0.0
    for rounds, crossing, wire in site.crossings():
        hop, port = float(wire.hop(size.wire)[0]), float(wire.port(size.wire)[0])
        drained = float(wire.drained(size.wire)[0])
        busy = max(port, code + merge)
        serve += rounds * busy
        last = max(last, max(code + hop + merge, drained) - busy)
        travel += rounds * (code + merge + crossing * hop + (1 - crossing) * inside)
    seconds = max(serve + last, travel if code else 0.0)
    return Cost(seconds, (p - 1) * float(size.wire[0]), p - 1)
