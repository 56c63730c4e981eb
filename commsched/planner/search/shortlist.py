"""The shortlist: the few legal methods that are worth an exact price, by closed forms."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from commsched.arrays import Floats
from commsched.exchange.method import Method
from commsched.net.bucket import BucketSpec

Closed = Callable[[Method, BucketSpec], Floats]  # (4,) s: vote, encode, exchange, decode

FEW = 4  # up to this many methods, all are considered
KEEP = 1.3  # methods slower than the fastest by this factor at every size are not considered
FAR = 2.0  # a method that another beats by this factor at two sizes does not lead between them


class Shortlist(NamedTuple):
    """The methods that a planner considers."""

    methods: tuple[Method, ...]  # for buckets with zeros
    plain: frozenset[str]  # those of `methods` for buckets without zeros
    leading: frozenset[str]  # the fastest at some size

    @classmethod
    def of(cls, methods: Iterable[Method]) -> "Shortlist":
        """Return the shortlist of all these methods for every bucket."""
        several = tuple(methods)
        names = frozenset(method.name for method in several)
        return cls(several, names, names)

    def joined(self, other: "Shortlist") -> "Shortlist":
        """Return the methods of both shortlists."""
        names = {method.name for method in self.methods}
        new = (method for method in other.methods if method.name not in names)
        plain, leading = self.plain | other.plain, self.leading | other.leading
        return Shortlist((*self.methods, *new), plain, leading)


def skips_zeros(method: Method) -> bool:
    """Tell whether a method's codec only leaves out zeros; without zeros it only adds a header."""
    return method.codec is not None and method.lossless and not method.fixed


def without_skippers(methods: Sequence[Method]) -> list[Method]:
    """Return the methods for a bucket without zeros; all of them if all leave out zeros."""
    return [method for method in methods if not skips_zeros(method)] or list(methods)


def shortlist(
    methods: Sequence[Method],
    without_zeros: Sequence[Method],
    closed: Closed,
    dense: tuple[list[BucketSpec], list[BucketSpec]],
    sparse: list[BucketSpec],
) -> Shortlist:
    """Choose methods by sample buckets; those in `without_zeros` compete on the `dense` samples.

    dense: samples in ascending order, and further samples between the first and the last.
    """
    plain, first = _considered(without_skippers(without_zeros), closed, *dense)
    some, also = _considered(methods, closed, sparse) if sparse else (set(), set())
    chosen = tuple(method for method in methods if method.name in plain | some)
    return Shortlist(chosen, frozenset(plain), frozenset(first | also))


def _considered(
    methods: Sequence[Method],
    closed: Closed,
    specs: list[BucketSpec],
    between: Sequence[BucketSpec] = (),
) -> tuple[set[str], set[str]]:
    """Return the methods that may be the fastest for some sample, and those that are.

    A method may be the fastest if its exchange or its total takes at most KEEP times the least by
    closed forms, which err by up to 15 % on the shipped machines. Each collective is represented by
    its best codec for exchange and for total, because the errors of a collective are alike. A
    method that another one equals or beats everywhere is left out.
    """
    names = [method.name for method in methods]
    if not methods:
        return set(), set()
    table = np.array([[closed(method, spec) for spec in specs] for method in methods])
    if between:
        more = np.full((len(methods), len(between), table.shape[-1]), np.inf)
        for i in _close(methods, table.sum(axis=-1)):
            more[i] = [closed(methods[i], spec) for spec in between]
        table = np.concatenate([table, more], axis=1)
    exchange, whole = table[..., 0] + table[..., 2], table.sum(axis=-1)
    found: set[int] = set(range(len(methods)))
    if len(methods) > FEW:
        families: dict[str, list[int]] = {}
        for i, method in enumerate(methods):
            families.setdefault(method.family, []).append(i)
        parts = np.stack([table[..., 1], exchange, table[..., 3]], axis=-1)
        near = _near(exchange, families) | _near(whole, families)
        found = _undominated(near, parts.reshape(len(methods), -1))
    kept = sorted(found)
    leading = {names[kept[i]] for i in whole[kept].argmin(axis=0).tolist()}
    return {names[i] for i in kept}, leading


def _close(methods: Sequence[Method], seconds: Floats) -> list[int]:
    """List the pairs that may lead between two sizes; seconds: (methods, sizes).

    Seconds grow about linearly, so that a method which another one beats at two sizes is also
    behind it between them. The library's own method changes its algorithm and is always listed.
    Methods that are no pair have no closed form and are played, which takes too long.
    """
    steady = np.array([not method.library for method in methods])
    beaten = FAR * seconds[steady, None] <= seconds  # by, method, size
    behind = (beaten[..., :-1] & beaten[..., 1:]).any(axis=0).all(axis=-1)
    may: list[int] = np.flatnonzero(~(behind & steady)).tolist()
    return [i for i in may if methods[i].codec is not None]


def _near(score: Floats, families: dict[str, list[int]]) -> set[int]:
    """Return each family's best method for each sample if it is near the best of all."""
    close = score <= KEEP * score.min(axis=0)
    found: set[int] = set()
    for members in families.values():
        best = np.array(members)[score[members].argmin(axis=0)]
        found.update(best[close[best, np.arange(score.shape[1])]].tolist())
    return found


def _undominated(found: set[int], parts: Floats) -> set[int]:
    """Return the methods that no other equals or beats in every part; the first among equals."""
    kept: list[int] = []
    for i in sorted(found, key=lambda i: (parts[i].sum(), i)):
        if not any((parts[j] <= parts[i]).all() for j in kept):
            kept.append(i)
    return set(kept)
