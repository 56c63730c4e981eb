"""Prices of buckets: by curves over the number of elements where these tell all, else one by one.

A price has one row per phase of the method: seconds to vote, encode, exchange and decode.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commsched.cost import price
from commsched.ir import Sparsity
from commsched.machine import Group, Machine
from commsched.methods import Choice as Decision
from commsched.methods import Direct, Method
from commsched.methods.base import copy_seconds
from commsched.plan import BucketSpec
from commsched.planner.request import Request
from commsched.planner.units import Bucket, spec_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LINEAR = 2e-3  # relative error of a curve between two of its points
DEPTH = 7  # halvings of a gap, at most
FEW = 4  # methods that are all considered
KEEP = 1.3  # methods that much slower than the fastest at every size are not considered


class Rows(NamedTuple):
    """Buckets with their methods, priced: columns over buckets."""

    ready: Floats  # (r,) s
    after: Ints  # (r,)
    apply: Floats  # (r,) s
    seconds: Floats  # (4, phases, r): vote, encode, exchange, decode
    phases: Ints  # (r,)


def phase_seconds(
    method: Method, spec: BucketSpec, machine: Machine, group: Group, mean: bool, limit: int
) -> Floats:
    """(4, phases) s of a launch: vote, encode, exchange, decode; packing is in them."""
    device, start = machine.device, np.zeros(group.size)
    pack = copy_seconds(4.0 * spec.numel)(device)
    phases = method.phases(spec, group)
    found = np.zeros((4, len(phases)))
    for number, phase in enumerate(phases):
        if isinstance(phase, Decision):
            found[0, number] = price.votes(machine, group, start).end.max()
            phase = phase.then(phase.expected)
        played = price.exchange(phase.schedule, phase.payload, machine, group, start, limit=limit)
        found[1, number] = phase.take_seconds(device)
        found[2, number] = played.end.max()
        found[3, number] = phase.give_seconds(device)
    found[1, 0] += pack
    found[3, -1] += pack if mean else 0.0
    return found


class Prices:
    """Prices of a request's methods; those of equal questions are kept."""

    def __init__(self, request: Request, limit: int) -> None:
        self.request = request
        self.limit = limit
        self.group = request.machine.everyone
        self.methods: list[Method] = []
        self.forced: set[int] = set()  # methods that stand here only because they are forced
        self._known: dict[tuple[BucketSpec, str], Floats] = {}
        self._curves: dict[int, tuple[Floats, Floats]] = {}
        self.most = 4096  # elements that the curves reach
        self.least = 1
        self.leading: list[str] = []  # methods that are the fastest somewhere

    def add(self, method: Method, forced: bool = False) -> int:
        """The number of a method, which is added where it is new."""
        for number, known in enumerate(self.methods):
            if known.name == method.name:
                return number
        self.methods.append(method)
        if forced:
            self.forced.add(len(self.methods) - 1)
        return len(self.methods) - 1

    @property
    def free(self) -> list[int]:
        """The methods that any bucket may have."""
        return [m for m in range(len(self.methods)) if m not in self.forced]

    def exact(self, spec: BucketSpec, method: int) -> Floats:
        """(4, phases) s of one bucket."""
        key = spec, self.methods[method].name
        if key not in self._known:
            r = self.request
            self._known[key] = phase_seconds(
                self.methods[method], spec, r.machine, self.group, r.mean, self.limit
            )
        return self._known[key]

    def choose(self, sizes: list[int]) -> list[Method]:
        """Of all allowed methods those that may be the fastest for some bucket.

        One stays if at some size, or for some sparse tensor, its exchange or its whole is at most
        1.3 times the least by closed forms, which err by up to 15 % on the shipped machines.
        """
        request = self.request
        methods = list(request.methods(self.group))
        specs = [BucketSpec.uniform(n) for n in sizes]
        laws: set[Sparsity] = set()
        for tensor in request.graph.tensors.values():
            if tensor.sparsity.law != "dense" and tensor.sparsity not in laws:
                laws.add(tensor.sparsity)
                specs.append(BucketSpec(((tensor.sparsity, tensor.numel, 0, tensor.numel),)))
        table = np.array([[self._closed(m, spec) for spec in specs] for m in methods])
        if not methods:
            return []
        exchange, whole = table[..., 0] + table[..., 2], table.sum(axis=-1)
        near = (exchange <= KEEP * exchange.min(axis=0)) | (whole <= KEEP * whole.min(axis=0))
        first = set(whole.argmin(axis=0).tolist())
        self.leading = [m.name for i, m in enumerate(methods) if i in first]
        few = len(methods) <= FEW
        return [m for m, keep in zip(methods, near.any(axis=1), strict=True) if few or keep]

    def _closed(self, method: Method, spec: BucketSpec) -> Floats:
        """(4,) s of one bucket by closed forms."""
        r = self.request
        found = phase_seconds(method, spec, r.machine, self.group, r.mean, 0)
        if self.limit == 0:
            self._known[spec, method.name] = found
        four: Floats = found.sum(axis=1)
        return four

    def curve(self, method: int) -> tuple[Floats, Floats]:
        """Elements (g,) and seconds (4, phases, g) of a method on dense buckets."""
        if method not in self._curves:
            low, high = self.least, max(self.most, self.least + 1)
            known = {n: self.exact(BucketSpec.uniform(n), method) for n in (low, high)}
            self._refine(method, known, low, high, DEPTH if self.limit else 1)
            sizes = sorted(known)
            self._curves[method] = (
                np.array(sizes, np.float64),
                np.stack([known[n] for n in sizes], axis=-1),
            )
        return self._curves[method]

    def _refine(
        self, method: int, known: dict[int, Floats], low: int, high: int, depth: int
    ) -> None:
        """Halve a gap of the curve, by ratio, until it is straight."""
        middle = round((low * high) ** 0.5)
        if not low < middle < high or depth == 0:
            return
        known[middle] = self.exact(BucketSpec.uniform(middle), method)
        straight = known[low] + (known[high] - known[low]) * ((middle - low) / (high - low))
        if np.allclose(straight, known[middle], rtol=LINEAR, atol=1e-9):
            return
        self._refine(method, known, low, middle, depth - 1)
        self._refine(method, known, middle, high, depth - 1)

    def by_size(self, method: int, numel: Floats) -> Floats:
        """(4, phases, r) s of dense buckets."""
        sizes, seconds = self.curve(method)
        found = np.empty((*seconds.shape[:2], len(numel)))
        for kind in range(4):
            for phase in range(seconds.shape[1]):
                found[kind, phase] = np.interp(numel, sizes, seconds[kind, phase])
        return found

    def follows_size(self, bucket: Bucket, method: int) -> bool:
        """Whether the number of elements tells a bucket's price."""
        if not bucket.sparse:
            return True
        known = self.methods[method]
        return isinstance(known, Direct) and known.codec.fixed

    def rows(self, buckets: list[Bucket], methods: list[int], apply: float) -> Rows:
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
            spec = spec_of(buckets[i], self.request.graph)
            parts.append((np.array([i]), self.exact(spec, methods[i])[:, :, None]))
        most = max((p.shape[1] for _, p in parts), default=1)
        seconds = np.zeros((4, most, len(buckets)))
        phases = np.ones(len(buckets), np.int64)
        for where, part in parts:
            seconds[:, : part.shape[1], where] = part
            phases[where] = part.shape[1]
        return Rows(
            np.array([b.ready for b in buckets]),
            np.array([b.after for b in buckets], np.int64),
            numel * apply,
            seconds,
            phases,
        )
