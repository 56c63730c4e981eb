"""The fastest method for one tensor, over its density and the bandwidth between nodes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from commsched.arrays import Floats
from commsched.coding.registry import CODECS
from commsched.cost.price import CHEAP, price
from commsched.errors import CommschedError
from commsched.exchange.method import Method
from commsched.exchange.registry import legal_methods
from commsched.machine.model import Link, Machine, Nic
from commsched.machine.relink import relinked
from commsched.net.bucket import BucketSpec
from commsched.units import bits, significant

DENSITIES = tuple(np.geomspace(1e-4, 1.0, 17).tolist())
RATES = tuple(np.geomspace(0.125e8, 0.125e12, 17).tolist())  # B/s: 100 Mbit/s to 1 Tbit/s

WIDE = tuple(np.geomspace(1e7 / 8, 1e13 / 8, 13).tolist())  # B/s: half a decade apart
NEAR = 1.005  # the search ends when the rates around an answer differ by this ratio


class Winners(NamedTuple):
    """The fastest method at each density (rows) and bandwidth (columns)."""

    densities: tuple[float, ...]
    rates: tuple[float, ...]  # B/s
    names: tuple[tuple[str, ...], ...]
    methods: tuple[str, ...]
    seconds: Floats  # (densities, rates, methods)

    def data(self) -> dict[str, Any]:
        """Return the winners as JSON data."""
        return {"densities": self.densities, "rates": self.rates, "names": self.names}


def winners(
    numel: int,
    machine: Machine,
    methods: Sequence[Method],
    *,
    done: Callable[[int], object] = lambda _: None,
    densities: tuple[float, ...] = DENSITIES,
    rates: tuple[float, ...] = RATES,
) -> Winners:
    """Price the methods by closed forms, non-zeros spread evenly; call `done(1)` per cell."""
    if machine.nodes == 1:
        raise CommschedError(
            f"machine {machine.name!r} has one node, and the map is over the bandwidth between"
            " nodes; nearest: --nodes 2"
        )
    specs = [BucketSpec.uniform(numel, density) for density in densities]
    machines = [at_rate(machine, rate) for rate in rates]

    def cell(spec: BucketSpec, on: Machine) -> list[float]:
        seconds = [price(m, spec, on, on.everyone, limit=0).seconds for m in methods]
        done(1)
        return seconds

    seconds = np.array([[cell(spec, on) for on in machines] for spec in specs])
    priced = tuple(method.name for method in methods)
    names = tuple(tuple(priced[i] for i in row) for row in seconds.argmin(axis=-1).tolist())
    return Winners(densities, rates, names, priced, seconds)


def port_rate(machine: Machine) -> float:
    """Return the machine's own value of the rate that the map varies: B/s."""
    return 1.0 / (machine.between if machine.nic is None else machine.nic).per_byte


def at_rate(machine: Machine, rate: float) -> Machine:
    """Return the machine with links of `rate` B/s between its nodes; nothing else changes."""
    per_byte = 1.0 / rate

    def changed(link: Link) -> Link:
        return replace(link, per_byte=per_byte, points=(), source="given")

    def port(nic: Nic) -> Nic:
        assert machine.nic is not None
        share = nic.per_byte / machine.nic.per_byte if machine.nic.per_byte else 1.0
        return replace(nic, per_byte=per_byte * share)

    return replace(relinked(machine, between=changed, port=port), native=())


class Outpaced(NamedTuple):
    """The rates of a port at which a codec's best method is faster than the best lossless one."""

    codec: str
    method: str  # the codec's best method at `rate`, or else at the slowest rate
    lossless: str
    rate: float | None  # B/s: above this rate the codec is slower; None: no such rate
    faster: bool  # whether the codec is faster just below `rate`, or else at all rates
    pays: tuple[tuple[float, float], ...]  # B/s: the ranges in which the codec is faster

    def sentence(self) -> str:
        """Answer in one sentence."""
        first, last = WIDE[0], WIDE[-1]
        if self.rate is not None and self.pays == ((first, self.rate),):
            return (
                f"{self.codec} pays up to {bits(self.rate)} per port: beyond, {self.lossless} is"
                f" faster than {self.method}"
            )
        ends = f"from {bits(first)} to {bits(last)}"
        if self.pays in ((), ((first, last),)):
            word = "faster" if self.pays else "slower"
            return (
                f"{self.codec} is {word} than the best lossless method at every rate {ends} per"
                " port"
            )
        where = " and ".join(
            f"up to {bits(high)}"
            if low == first
            else f"from {bits(low)} on"
            if high == last
            else f"from {bits(low)} to {bits(high)}"
            for low, high in self.pays
        )
        return (
            f"{self.codec} pays at rates of a port {where}; at others the best lossless method is"
            " faster"
        )

    def data(self) -> dict[str, Any]:
        """Return the answer as plain data."""
        found = self._asdict()
        rate, pays = found.pop("rate"), found.pop("pays")
        return found | {
            "port_bits_per_second": rate and significant(8 * rate),
            "pays_bits_per_second": [[significant(8 * end) for end in ends] for ends in pays],
        }


def outpaced(spec: BucketSpec, machine: Machine, codec: str) -> Outpaced:
    """Find the rates of a node's port at which a codec pays for one bucket."""
    if machine.nodes == 1:
        raise CommschedError("--break-even needs a machine of several nodes; nearest: --nodes 2")
    if CODECS[codec].lossless:
        raise CommschedError(f"--break-even {codec}: the codec is lossless; give a lossy one")
    legal = [*legal_methods(machine.everyone, more=(codec,))]
    coded = [method for method in legal if method.coding == CODECS[codec].name]
    exact = [method for method in legal if method.lossless]

    def best(methods: Sequence[Method], rate: float) -> tuple[float, str]:
        on = at_rate(machine, rate)
        found = ((price(m, spec, on, on.everyone, limit=CHEAP).seconds, m.name) for m in methods)
        return min(found)

    def pays(rate: float) -> bool:
        return best(coded, rate)[0] < best(exact, rate)[0]

    def edge(low: float, high: float) -> float:
        before = pays(low)
        while high / low > NEAR:
            middle = sqrt(low * high)
            low, high = (middle, high) if pays(middle) == before else (low, middle)
        return sqrt(low * high)

    known = [pays(rate) for rate in WIDE]
    edges = [
        edge(*ends) for ends, (a, b) in zip(pairwise(WIDE), pairwise(known), strict=True) if a != b
    ]
    ends = [WIDE[0]] * known[0] + edges + [WIDE[-1]] * known[-1]
    ranges = tuple(zip(ends[::2], ends[1::2], strict=True))
    falls = [high for _, high in ranges if high != WIDE[-1]]
    rate = falls[-1] if falls else WIDE[0]
    names = best(coded, rate)[1], best(exact, rate)[1]
    return Outpaced(codec, *names, rate if falls else None, bool(falls) or all(known), ranges)
