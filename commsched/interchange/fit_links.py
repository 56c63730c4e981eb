"""Links of a machine, fitted to measured sums and messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from commsched.arrays import Floats
from commsched.cost.least_squares import least_squares
from commsched.cost.price import price
from commsched.errors import CommschedError
from commsched.exchange.registry import find_method
from commsched.interchange.micro_benchmarks import ALL_REDUCE, STREAM, Series
from commsched.machine.fabric import HeldOut
from commsched.machine.model import Machine, resized
from commsched.machine.relink import scaled_links
from commsched.net.bucket import BucketSpec
from commsched.units import nbytes

# Fitted factors of a link's seconds, and the expected error of each one's logarithm.
DOUBT = {"latency": 3.0, "bytes": 1.5}
PLACES = ("inside", "between")
THIRD = 3  # of its sizes every third is left out of the fit
# B; assumption: shorter messages back to back measure calls rather than bytes.
STREAMED = 65536.0


@dataclass(frozen=True)
class Task:
    """What is predicted of a series, on which machine."""

    series: Series
    on: Machine
    place: str  # of single messages: "inside" or "between"

    @property
    def points(self) -> list[tuple[float, float]]:
        """The points that are predicted."""
        kind = self.series.kind
        least = {STREAM: STREAMED, ALL_REDUCE: 4.0}.get(kind, 0.0)
        return [(size, seconds) for size, seconds in self.series.points if size >= least]

    def seconds(self, factors: Mapping[str, float]) -> Floats:
        """Predict the points: L + 2 o + n G of a message, n G of one of many back to back."""
        on = scaled_links(self.on, factors)
        sizes = np.array([size for size, _ in self.points])
        if self.series.kind == ALL_REDUCE:
            return np.array([_sum(on, size) for size in sizes.tolist()])
        link = on.inside if self.place == "inside" else on.between
        wire = np.asarray(link.wire(sizes))
        if on.nic is not None and self.place == "between":
            wire = np.maximum(wire, sizes * on.nic.per_byte)
        return wire if self.series.kind == STREAM else link.latency + 2 * link.overhead + wire


def _sum(on: Machine, size: float) -> float:
    spec = BucketSpec.uniform(int(size) // 4)
    return price(find_method("native+dense"), spec, on, on.everyone).exchange


def task(machine: Machine, series: Series, inside: bool) -> Task:
    """Put a series on the machine; an error if the machine has no such ranks."""
    lanes = series.lanes
    if inside or len(lanes) == 1:
        found = machine.everyone.lanes if not lanes else lanes[0]
        on = resized(machine, 1, found if series.kind == ALL_REDUCE else max(found, 2))
        place = "inside"
    else:
        if len(set(lanes)) > 1:
            raise CommschedError(f"{series.path}: hosts have different numbers of ranks: {lanes}")
        on = resized(machine, len(lanes), lanes[0]) if lanes else machine
        place = "between" if on.nodes > 1 else "inside"
    if lanes and (len(lanes) > machine.nodes or lanes[0] > machine.everyone.lanes):
        raise CommschedError(
            f"{series.path}: measured {len(lanes)} x {lanes[0]} ranks, but {machine.name} has"
            f" {machine.nodes} x {machine.everyone.lanes}; nearest: --nodes {len(lanes)} --lanes"
            f" {lanes[0]}"
        )
    return Task(series, replace(on, native=()), place)


def fitted(machine: Machine, tasks: Sequence[Task]) -> Machine:
    """Fit latency and rate of the links inside and between nodes; note errors of sizes left out.

    Least squares of logarithms over two of three sizes, damped towards the machine's own numbers.
    A sum of all ranks also becomes the machine's measured all-reduce.
    """
    names = [f"{what} {place}" for place in PLACES for what in DOUBT]
    doubt = np.array([DOUBT[name.split()[0]] for name in names])
    real = [np.array([seconds for _, seconds in each.points]) for each in tasks]
    left = [np.arange(len(each)) % THIRD == 1 for each in real]

    def predicted(logs: Floats) -> list[Floats]:
        factors = dict(zip(names, np.exp(logs).tolist(), strict=True))
        return [each.seconds(factors) for each in tasks]

    def errors(logs: Floats) -> Floats:
        pairs = zip(predicted(logs), real, left, strict=True)
        return np.concatenate([np.log(mine[~out] / seen[~out]) for mine, seen, out in pairs])

    # A library's choice of algorithm follows the links: the errors have several valleys.
    corners = [doubt * signs / 2 for signs in product((-1.0, 1.0), repeat=len(doubt))]
    logs = least_squares(errors, doubt, corners)
    held = tuple(
        HeldOut(name=f"{each.series.title} {nbytes(size)}", predicted=mine, measured=seen)
        for each, times, out in zip(tasks, predicted(logs), left, strict=True)
        for (size, seen), mine, outside in zip(each.points, times.tolist(), out, strict=True)
        if outside
    )
    moved = {name: float(f) for name, f in zip(names, np.exp(logs), strict=True) if f != 1.0}
    sums = [t.series for t in tasks if t.series.kind == ALL_REDUCE and t.on.size == machine.size]
    if sums:
        sizes, seconds = zip(*sums[-1].points, strict=True)
        rising = np.maximum.accumulate(seconds).tolist()
        machine = replace(machine, native=tuple(zip(sizes, rising, strict=True)))
    told = f"fitted to {', '.join(dict.fromkeys(Path(t.series.path).name for t in tasks))}"
    source = f"{machine.source}; links {told}"
    return replace(scaled_links(machine, moved, told), held_out=held, source=source)
