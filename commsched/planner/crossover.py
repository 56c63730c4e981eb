"""The fastest method for one tensor, over its density and the bandwidth between nodes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from commsched.cost.price import price
from commsched.errors import CommschedError
from commsched.exchange.method import Method
from commsched.machine.model import Link, Machine
from commsched.net.bucket import BucketSpec

DENSITIES = tuple(np.geomspace(1e-4, 1.0, 17).tolist())
RATES = tuple(np.geomspace(0.125e8, 0.125e12, 17).tolist())  # B/s: 100 Mbit/s to 1 Tbit/s


class Winners(NamedTuple):
    """The method of the least seconds at each density (rows) and bandwidth (columns)."""

    densities: tuple[float, ...]
    rates: tuple[float, ...]  # B/s
    names: tuple[tuple[str, ...], ...]


def winners(
    numel: int,
    machine: Machine,
    methods: Sequence[Method],
    *,
    done: Callable[[int], object] = lambda _: None,
    densities: tuple[float, ...] = DENSITIES,
    rates: tuple[float, ...] = RATES,
) -> Winners:
    """Price the methods by closed forms, on an evenly spread support; `done` counts the cells."""
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

    best = np.array([[cell(spec, on) for on in machines] for spec in specs]).argmin(axis=-1)
    names = tuple(tuple(methods[i].name for i in row) for row in best.tolist())
    return Winners(densities, rates, names)


def at_rate(machine: Machine, rate: float) -> Machine:
    """The machine with other links between its nodes, B/s; latencies and the inside stay."""
    per_byte = 1.0 / rate

    def changed(link: Link) -> Link:
        return replace(link, per_byte=per_byte, points=(), source="given")

    return replace(
        machine,
        between=changed(machine.between),
        overrides={node: changed(link) for node, link in machine.overrides.items()},
        nic=None if machine.nic is None else replace(machine.nic, per_byte=per_byte),
        native=(),
    )
