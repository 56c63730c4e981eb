"""Prices of buckets: by curves if the number of elements decides, else bucket by bucket.

A price has one row per phase of the method: seconds to vote, encode, exchange and decode.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from commsched.arrays import Floats, Ints
from commsched.cost import price
from commsched.cost.chain import handling_seconds, messages_of_a_rank, seconds_of_waking
from commsched.exchange.method import Choice, Method, Phase, resolved
from commsched.exchange.registry import find_method
from commsched.machine.library import algorithm_of
from commsched.net.bucket import BucketSpec
from commsched.net.sparsity import Sparsity
from commsched.planner.deadline import Check, go_on
from commsched.planner.request import Request
from commsched.planner.search.curve import DEPTH, curve_of, refined, smooth_between
from commsched.planner.search.shortlist import Shortlist, shortlist
from commsched.planner.space import Bucket, spec_of
from commsched.program.model import Kind
from commsched.program.parts import (
    HANDOVERS,
    CodingTime,
    Part,
    gather_seconds,
    mean_seconds,
    operations,
    parts_in,
    seconds,
)
from commsched.simulate.exchange_costs import Known

ROWS = {Kind.DECIDE: 0, Kind.ENCODE: 1, Kind.EXCHANGE: 2, Kind.DECODE: 3}  # of a price
CODES = [ROWS[Kind.ENCODE], ROWS[Kind.DECODE]]
EXCHANGED = np.array([kind is Kind.EXCHANGE for kind in ROWS])[:, None, None]

FEW = 3  # sizes at which all methods are compared
MORE = 7  # sizes at which close methods are compared, besides those where the library switches

OF_MESSAGES = seconds_of_waking, messages_of_a_rank


class PricedRows(NamedTuple):
    """The prices of buckets with their methods: columns over buckets."""

    ready: Floats  # (r,) s
    after: Ints  # (r,)
    apply: Floats  # (r,) s
    seconds: Floats  # (4, phases, r): vote, encode, exchange, decode
    phases: Ints  # (r,)
    late: Floats  # (phases, r) s that exchanges last longer while the rank computes
    # (r,) s for which coding, hand-overs and messages occupy a rank's share of the cores
    taken: Floats

    @property
    def kinds(self) -> Ints:
        """Return (r,) numbers, equal for rows with the same layer and apply time."""
        return np.unique(self.after + 1j * self.apply, return_inverse=True)[1].reshape(-1)


class PriceTables:
    """The prices shared by requests that differ only in the methods that they allow."""

    def __init__(self) -> None:
        # Keys: the limit of moves that are played, the bucket, the name of the method.
        self.exact: dict[tuple[int, BucketSpec, str], Floats] = {}
        self.curves: dict[tuple[int, str], tuple[Floats, Floats]] = {}
        self.played: Known = {}  # exchanges of the simulator


class Prices:
    """The prices of a request's methods, cached in `tables`."""

    def __init__(
        self,
        request: Request,
        limit: int,
        tables: PriceTables,
        check: Check = go_on,
    ) -> None:
        self.request = request
        self.check = check
        self.limit = limit
        self.tables = tables
        self.group = request.machine.everyone
        self.waking = request.net.occupies_cores and request.machine.waking > 0.0
        self.coding_time = CodingTime.of(request.machine, request.net)
        self.handover_work = request.machine.handover_work / request.machine.alone
        self._counted: dict[tuple[int, int | BucketSpec], Floats] = {}
        self._matrices: dict[tuple[BucketSpec, int], tuple[Floats, Floats]] = {}
        self.methods: list[Method] = []
        self.free: list[int] = []  # methods that any bucket may have
        self.plain: list[int] = []  # those methods of `free` that a bucket without zeros may have
        # Kind, phase and parts of a launch's operations; key: which of its phases are voted on.
        self._own: dict[tuple[bool, ...], list[tuple[Kind, int, tuple[Part, ...]]]] = {}
        self.most = 4096  # elements that the curves reach
        self.least = 1

    def add(self, method: Method) -> int:
        """Return the number of a method; add the method if it is new."""
        for number, known in enumerate(self.methods):
            if known.name == method.name:
                return number
        self.methods.append(method)
        return len(self.methods) - 1

    def consider(self, kept: Shortlist, leading: bool) -> None:
        """Let buckets have these methods, or only the leading ones."""
        for method in kept.methods:
            if leading and method.name not in kept.leading:
                continue
            number = self.add(method)
            self.free.append(number)
            if method.name in kept.plain:
                self.plain.append(number)

    def exact(self, spec: BucketSpec, method: int) -> Floats:
        """Return the (4, phases) s of one bucket."""
        return self._priced(self.methods[method], spec, self.limit)

    def matrix_work(self, spec: BucketSpec, method: int) -> tuple[Floats, Floats]:
        """Return a bucket's (4, 2) s of work without exchanges, and (2,) elements of the exchanges.

        For a method with `matrix_sums`; both results are sums over the bucket's tensors.
        """
        key = spec, method
        if key not in self._matrices:
            self.check()
            found, exchanges = self._work(self.methods[method], spec)
            work, numel = np.zeros((len(ROWS), 2)), np.zeros(2)
            work[:, : len(exchanges)] = found
            for number, one in enumerate(exchanges):
                assert one.payload.spec is not None
                numel[number] = one.payload.spec.numel
            self._matrices[key] = work, numel
        return self._matrices[key]

    def with_matrix_sums(self, work: Floats, numel: Floats, method: int) -> Floats:
        """Add the exchanges to the `matrix_work` of n buckets: (4, 2, n) s."""
        pair = self.add(find_method(self.methods[method].matrix_sums))
        sums = self.by_size(pair, numel.reshape(-1)).sum(axis=1)
        found: Floats = work + sums.reshape(len(ROWS), *numel.shape) * (numel > 0) * EXCHANGED
        return found

    def _priced(self, method: Method, spec: BucketSpec, limit: int) -> Floats:
        key = limit, method.seen(spec, self.group), method.name
        if key not in self.tables.exact:
            self.check()
            (self.tables.exact[key],) = _all_seconds([self._work(method, spec)], limit)
        return self.tables.exact[key]

    def unpacked(self, spec: BucketSpec, method: int) -> float:
        """Return the seconds of one bucket alone, without packing; never less than 0."""
        packing = self._packing(self.methods[method].seen(spec, self.group))
        return max(float(self.exact(spec, method).sum()) - packing, 0.0)

    def unpacked_of_size(self, numel: int, method: int) -> float:
        """Return the seconds of a bucket without zeros from the method's curve, without packing."""
        whole = float(self.by_size(method, np.array([numel], np.float64)).sum())
        return max(whole - self._packing(BucketSpec.uniform(numel)), 0.0)

    def closed(self, method: Method, spec: BucketSpec) -> Floats:
        """Return the (4,) s of one bucket by closed forms."""
        four: Floats = self._priced(method, spec, 0).sum(axis=1)
        return four

    def _work(self, method: Method, spec: BucketSpec) -> "_Work":
        """Return the parts of a launch's price: own work, packing included, and exchanges."""
        machine, group = self.request.machine, self.group
        device = machine.device
        spec, start = method.seen(spec, group), np.zeros(group.size)
        phases = method.phases(spec, group)
        expected = [resolved(phase) for phase in phases]
        found = np.zeros((len(ROWS), len(phases)))
        exchanges: list[price.ToPrice] = []
        votes = tuple(isinstance(phase, Choice) for phase in phases)
        if votes not in self._own:
            self._own[votes] = [(*one, self._parts(*one, phases)) for one in operations(phases)]
        for kind, number, own in self._own[votes]:
            phase = expected[number]
            if kind is Kind.EXCHANGE:
                one = price.ToPrice(phase.schedule, phase.payload, machine, group, start)
                exchanges.append(one)
                found[ROWS[kind], number] = phase.within_seconds(device)
                continue
            cost = seconds(own, phase, spec.all_raw / 4, device)
            found[ROWS[kind], number] = self.coding_time.lasts(cost)
            if kind is Kind.DECIDE:
                found[ROWS[kind], number] += self._votes
        return _Work(found, exchanges)

    def _parts(self, kind: Kind, number: int, phases: Sequence[Phase | Choice]) -> tuple[Part, ...]:
        mean, ranks = self.request.mean, self.group.size
        return parts_in(kind, number, phases, ranks=ranks, mean=mean)

    def _packing(self, spec: BucketSpec) -> float:
        """Return the seconds to gather a bucket, and to make its sum a mean."""
        device = self.request.machine.device
        mean = self.request.mean and self.group.size > 1
        numel = spec.all_raw / 4
        scale = mean_seconds(numel, device) if mean else 0.0
        return gather_seconds(numel, device) + scale

    @cached_property
    def _votes(self) -> float:
        """Return the seconds in which the ranks agree on a number."""
        start = np.zeros(self.group.size)
        return float(price.votes(self.request.machine, self.group, start).end.max())

    def choose(self, methods: list[Method], quick: bool) -> Shortlist:
        """Return those of some methods that may be the fastest for some bucket.

        `quick`: compare methods at fewer sizes; for buckets without zeros, consider only methods of
        one collective and one codec.
        """
        few, more = (_even_sizes(self.least, self.most, count) for count in (FEW, MORE))
        between = [] if quick else sorted({*more, *self._smooth}.difference(few))
        dense = [BucketSpec.uniform(n) for n in few], [BucketSpec.uniform(n) for n in between]
        laws: dict[tuple[Sparsity, bool], BucketSpec] = {}
        for tensor in self.request.net.tensors.values():
            if tensor.sparsity.law != "dense":
                pieces = ((tensor.sparsity, tensor.numel, 0, tensor.numel),)
                whole = BucketSpec(pieces, tensor.lists)
                laws.setdefault((tensor.sparsity, tensor.lists), whole)
        plain = [m for m in methods if m.codec is not None] if quick else methods
        return shortlist(methods, plain or methods, self.closed, dense, list(laws.values()))

    def curve(self, method: int) -> tuple[Floats, Floats]:
        """Return elements (g,) and seconds (4, phases, g) of a method on dense buckets."""
        make_curves([(self, method)])
        return self.tables.curves[self.limit, self.methods[method].name]

    def refined(self, method: int) -> Iterator[list[int]]:
        """Make a curve; yield the sizes whose prices the caller must first add to `tables`."""
        found: dict[int, Floats] = {}
        ends = self._smooth if self.methods[method].library else [self.least, self.most]
        depth = DEPTH if self.limit else 1
        yield from refined(
            ends, lambda numel: self.exact(BucketSpec.uniform(numel), method), depth, found
        )
        self.tables.curves[self.limit, self.methods[method].name] = curve_of(found)

    def price_dense(self, method: int, sizes: Iterable[int]) -> Iterator["_Asked"]:
        """Yield the prices of dense buckets of some sizes that `tables` lacks."""
        own, seen = self.methods[method], set[int]()
        for numel in sizes:
            spec = BucketSpec.uniform(numel)
            key = self.limit, spec, own.name
            if key not in self.tables.exact and numel not in seen:
                seen.add(numel)
                yield _Asked(self.tables, key, self._work(own, spec))

    @cached_property
    def _smooth(self) -> list[int]:
        """List the sizes between which the curve of the library's own exchange is smooth."""
        machine, group = self.request.machine, self.group
        return smooth_between(
            self.least, self.most, lambda n: algorithm_of(machine, group, 4.0 * n).title
        )

    def by_size(self, method: int, numel: Floats) -> Floats:
        """Return the (4, phases, r) s of dense buckets."""
        sizes, seconds = self.curve(method)
        found = np.empty((*seconds.shape[:2], len(numel)))
        for kind in range(4):
            for phase in range(seconds.shape[1]):
                found[kind, phase] = np.interp(numel, sizes, seconds[kind, phase])
        return found

    def follows_size(self, bucket: Bucket, method: int) -> bool:
        """Tell whether the number of elements decides a bucket's price."""
        own = self.methods[method]
        return not own.matrix_sums and (not bucket.sparse or own.fixed)

    def rows(self, buckets: list[Bucket], methods: list[int], apply: float) -> PricedRows:
        """Price buckets with their methods; `apply` [s] per element."""
        numel = np.array([b.numel for b in buckets], np.float64)
        which = np.array(methods, np.int64)
        parts: list[tuple[Ints, Floats]] = []
        sized = np.array(
            [self.follows_size(b, m) for b, m in zip(buckets, methods, strict=True)], bool
        )
        for method in np.unique(which[sized]).tolist():
            where = np.flatnonzero(sized & (which == method))
            parts.append((where, self.by_size(method, numel[where])))
        for i in np.flatnonzero(~sized).tolist():
            spec = spec_of(buckets[i], self.request.net)
            if self.methods[methods[i]].matrix_sums:
                work, own = self.matrix_work(spec, methods[i])
                found = self.with_matrix_sums(work[:, :, None], own[:, None], methods[i])
            else:
                found = self.exact(spec, methods[i])[:, :, None]
            parts.append((np.array([i]), found))
        most = max((p.shape[1] for _, p in parts), default=1)
        seconds, late = np.zeros((4, most, len(buckets))), np.zeros((most, len(buckets)))
        phases = np.ones(len(buckets), np.int64)
        for where, part in parts:
            seconds[:, : part.shape[1], where] = part
            phases[where] = part.shape[1]
        handovers = np.asarray(HANDOVERS * phases + 1, np.float64)  # one more for the update
        used, machine = self.handover_work * handovers, self.request.machine
        coding = seconds[CODES]
        used += self.coding_time.work(coding).sum(axis=(0, 1))
        seconds[CODES] = self.coding_time.ends(coding)
        if self.waking or machine.message:
            for i, (made, method) in enumerate(zip(buckets, methods, strict=True)):
                waking, messages = self._messages(made, method)[:, : phases[i]]
                late[: phases[i], i] = waking * self.waking
                lasts = seconds[2, : phases[i], i] + late[: phases[i], i]
                taken = handling_seconds(machine.message * messages, lasts, machine)
                used[i] += taken.sum() / machine.alone
        return PricedRows(
            np.array([b.ready for b in buckets]),
            np.array([b.after for b in buckets], np.int64),
            numel * apply,
            seconds,
            phases,
            late,
            used,
        )

    def _messages(self, made: Bucket, method: int) -> Floats:
        """Return (2, phases): s of waking for each exchange of a bucket, and messages of a rank."""
        net = self.request.net
        asked = made.numel if self.follows_size(made, method) else spec_of(made, net)
        key = method, asked
        if key not in self._counted:
            machine, group, own = self.request.machine, self.group, self.methods[method]
            spec = own.seen(spec_of(made, net), group)
            every = [
                (one.schedule, one.payload, machine, group)
                for one in map(resolved, own.phases(spec, group))
            ]
            counted = [[count(*one) for one in every] for count in OF_MESSAGES]
            self._counted[key] = np.array(counted, np.float64)
        return self._counted[key]


def _even_sizes(least: int, most: int, count: int) -> list[int]:
    """List numbers of elements at even ratios."""
    sizes: list[int] = np.geomspace(least, most, count).round().astype(int).tolist()
    return sizes


class _Work(NamedTuple):
    """The parts of a launch's price."""

    own: Floats  # (4, phases) s; for exchanges only the ranks' own work
    exchanges: list[price.ToPrice]  # of each phase


class _Asked(NamedTuple):
    """A price that `tables` lacks."""

    tables: PriceTables
    key: tuple[int, BucketSpec, str]
    work: _Work


def _all_seconds(works: Sequence[_Work], limit: int) -> Iterator[Floats]:
    """Yield the (4, phases) s of each launch; exchanges of one schedule are played together."""
    played = iter(price.exchanges([one for work in works for one in work.exchanges], limit))
    for own, exchanges in works:
        for number in range(len(exchanges)):
            own[ROWS[Kind.EXCHANGE], number] += next(played).end.max()
        yield own


def make_curves(wanted: Sequence[tuple[Prices, int]]) -> None:
    """Make the curves of methods that `tables` lack; price all of them together."""
    new = {
        (id(prices.tables), prices.limit, prices.methods[method].name): (prices, method)
        for prices, method in wanted
        if (prices.limit, prices.methods[method].name) not in prices.tables.curves
    }
    left = [(prices, method, prices.refined(method)) for prices, method in new.values()]
    while left:
        for prices, *_ in left:
            prices.check()
        sizes = [next(steps, None) for *_, steps in left]
        left = [one for one, some in zip(left, sizes, strict=True) if some is not None]
        asked = [
            each
            for (prices, method, _), some in zip(left, filter(None, sizes), strict=True)
            for each in prices.price_dense(method, some)
        ]
        for limit in {one.key[0] for one in asked}:
            some = [one for one in asked if one.key[0] == limit]
            for one, found in zip(some, _all_seconds([x.work for x in some], limit), strict=True):
                one.tables.exact[one.key] = found
