"""Textbook formulas: oracles of `play` on equal links, and the fast path at scale."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2

from commsched.cost.pattern import Places
from commsched.machine import Group, Machine
from commsched.methods import Payload
from commsched.registry import Registry
from commsched.schedule import Goal, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Seconds of one message and its addition: fixed + n * slope, n in B of packet.

    away = L + 2 o [s]; per_byte = G [s/B]; add [s/B], fixed [s]: the receiver's addition.
    """

    away: float
    per_byte: float
    add: float
    fixed: float = 0.0

    def hop(self, nbytes: float) -> float:
        """Seconds until a message has arrived."""
        return self.away + nbytes * self.per_byte

    def merge(self, nbytes: float) -> float:
        """Seconds to add what arrived."""
        return self.fixed + nbytes * self.add


def ring_all_reduce(nbytes: float, p: int, t: Terms) -> float:
    """Seconds for a ring all-reduce of `nbytes` bytes over p equal links.

        t = 2 (p - 1) (L + 2o + n G / p) + (p - 1) a n / p

    n [B] = nbytes; L, o [s], G [s/B] of the link; a [s/B] of the addition.
    Source: Patarasuk & Yuan, JPDC 69(2), 2009, with LogGP terms (Alexandrov et al., SPAA 1995).
    Holds for equal links and blocks, and ranks that start together; where adding is slower than
    the wire, too, because each rank waits for its own addition before it sends on.
    """
    return 2 * (p - 1) * t.hop(nbytes / p) + (p - 1) * t.merge(nbytes / p)


def doubling_all_reduce(nbytes: float, p: int, t: Terms) -> float:
    """Seconds for recursive doubling.

        t = ceil(log2 p) (L + 2o + n G + a n), two hops and an addition more if p is no power of two

    Source: Thakur, Rabenseifner & Gropp, IJHPCA 19(1), 2005. Holds as the ring's formula does.
    """
    rounds = p.bit_length() - 1
    total = rounds * (t.hop(nbytes) + t.merge(nbytes))
    if p != 1 << rounds:
        total += 2 * t.hop(nbytes) + t.merge(nbytes)
    return total


def halving_doubling_all_reduce(nbytes: float, p: int, t: Terms) -> float:
    """Seconds for recursive halving, then recursive doubling.

        t = 2 log2 p (L + 2o) + (p - 1)/p n (2 G + a), p a power of two

    Otherwise the ranks left over are folded in and out: two hops and an addition of n more.
    Source: Rabenseifner, ICCS 2004. Holds as the ring's formula does.
    """
    rounds = p.bit_length() - 1
    q = 1 << rounds
    total = 2 * rounds * t.away + (q - 1) / q * nbytes * (2 * t.per_byte + t.add)
    total += rounds * t.fixed
    if p != q:
        total += 2 * t.hop(nbytes) + t.merge(nbytes)
    return total


def tree_all_reduce(nbytes: float, p: int, t: Terms) -> float:
    """Seconds for a binomial reduce to one rank and a binomial broadcast.

        t = ceil(log2 p) (2 (L + 2o + n G) + a n)

    Source: Thakur, Rabenseifner & Gropp, IJHPCA 19(1), 2005.
    Holds as the ring's formula does, for p a power of two or where the last reduce is on the path.
    """
    return ceil(log2(p)) * (2 * t.hop(nbytes) + t.merge(nbytes)) if p > 1 else 0.0


def direct_all_reduce(nbytes: float, p: int, t: Terms) -> float:
    """Seconds for a direct reduce-scatter and all-gather.

        t = 2 (L + o + (p - 1) (n G / p + o)) + a n / p          if the wire is slower than adding
        t = 2 (L + o) + (p - 1) (2 n G / p + ...) in general: the additions queue behind each other

    Messages of a half do not wait for each other: each costs its time on the port, L only once.
    Holds as the ring's formula does.
    """
    if p == 1:
        return 0.0
    block = nbytes / p
    port, add = block * t.per_byte, t.merge(block)
    return _queued(p - 1, t, port, add) + _queued(p - 1, t, port, 0.0)


def _queued(messages: int, t: Terms, port: float, work: float) -> float:
    raise AssertionError


