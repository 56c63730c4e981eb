"""The fit of a machine's links to measured all-reduces and messages."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from commsched.arrays import Bools, Floats
from commsched.cost.least_squares import least_squares
from commsched.cost.pattern import Places
from commsched.cost.price import price
from commsched.errors import CommschedError
from commsched.exchange.registry import find_method
from commsched.interchange.measured_ranks import level_of, ranks_of
from commsched.interchange.micro_benchmarks import ALL_REDUCE, SHIFT, STREAM, Series
from commsched.machine.fabric import HeldOut
from commsched.machine.model import Group, Link, Machine, resized
from commsched.machine.relink import PLACES, relinked_at, scaled_links
from commsched.net.bucket import BucketSpec
from commsched.units import count, nbytes

# Fitted factors of a link's seconds, and the expected error of each one's logarithm.
DOUBT = {"latency": 3.0, "bytes": 1.5, "oversubscription": 1.5}
THIRD = 3  # every third size of a series is left out of the fit
LEAST = 2  # sizes: one for the fit, one to test it
# B; assumption: a stream of shorter messages measures the calls rather than the bytes.
STREAMED = 65536.0
Factors = Mapping[str, float]


@dataclass(frozen=True)
class FitTask:
    """A measured series with the machine, place and ranks for which it is predicted."""

    series: Series
    on: Machine
    place: str  # "inside" or "between", or the level that the series was measured on
    ranks: tuple[int, ...] = ()  # measured ranks of a level; (): all ranks

    @property
    def least(self) -> float:
        """The smallest predicted size, in bytes."""
        return {STREAM: STREAMED, ALL_REDUCE: 4.0}.get(self.series.kind, 0.0)

    @property
    def points(self) -> list[tuple[float, float]]:
        """The measured points whose sizes are predicted."""
        return [(size, seconds) for size, seconds in self.series.points if size >= self.least]

    @property
    def left_out(self) -> Bools:
        """Mask of the points that are left out of the fit: (points,)."""
        found: Bools = np.arange(len(self.points)) % THIRD == 1
        return found

    @property
    def group(self) -> Group:
        """The measured ranks; a test that does not name its ranks has two of them, or all."""
        if self.ranks or self.series.lanes or self.series.kind == ALL_REDUCE:
            return self.on.group(self.ranks) if self.ranks else self.on.everyone
        node = self.on.node_of_rank
        apart = [rank for rank in range(1, len(node)) if node[rank] != node[0]]
        return self.on.group((0, apart[0] if self.place == "between" else 1))

    def seconds(self, factors: Factors) -> Floats:
        """Predict the points: L + 2 o + n G for a message, n G for each message of a stream."""
        on = scaled_links(self.on, factors)
        sizes = np.array([size for size, _ in self.points])
        if self.series.kind == ALL_REDUCE:
            return np.array([_sum(on, self.group, size) for size in sizes.tolist()])
        if self.ranks:
            return self._messages(on, sizes)
        link = on.inside if self.place == "inside" else on.between
        wire = np.asarray(link.wire(sizes))
        if on.nic is not None and self.place == "between":
            wire = np.maximum(wire, sizes * on.nic.per_byte)
        return wire if self.series.kind == STREAM else link.latency + 2 * link.overhead + wire

    def _messages(self, on: Machine, sizes: Floats) -> Floats:
        """Predict messages on a level: first rank to last rank, or each rank to the next."""
        src, dst = np.array([0]), np.array([len(self.ranks) - 1])
        if self.series.kind == SHIFT:
            src, dst = np.arange(len(self.ranks)), np.roll(np.arange(len(self.ranks)), -1)
        wire = Places(on, self.group).wire(src, dst)
        away = wire.away + wire.overhead if self.series.kind == STREAM else 0.0
        whole = np.array([wire.drained(np.full(len(src), n)) - away for n in sizes.tolist()])
        found: Floats = whole.max(axis=1)
        return found


def _sum(on: Machine, group: Group, size: float) -> float:
    spec = BucketSpec.uniform(int(size) // 4)
    return price(find_method("native+dense"), spec, on, group).exchange


def task(machine: Machine, series: Series, place: str = "") -> FitTask:
    """Place a series on the machine; raise an error if the machine has no such ranks.

    place: "inside" or "between" nodes, or a level of the machine; "": as the series tells.
    """
    lanes = series.lanes
    _check_hosts(series, place, 1 if len(lanes) == 1 else machine.nodes)
    if place and place not in PLACES:
        ranks = ranks_of(machine, level_of(machine, place), series)
        return FitTask(series, replace(machine, native=()), place, ranks)
    alone = len(lanes) == 1 or (not lanes and machine.nodes == 1)
    if place == "inside" or (alone and not place):
        width = machine.everyone.lanes if not lanes else lanes[0]
        on = resized(machine, 1, width if series.kind == ALL_REDUCE else max(width, 2))
        place = "inside"
    else:
        on = resized(machine, len(lanes), lanes[0]) if lanes else machine
        place = "between" if on.nodes > 1 else "inside"
    if lanes and (len(lanes) > machine.nodes or lanes[0] > machine.everyone.lanes):
        raise CommschedError(
            f"{series.path}: measured {len(lanes)} x {lanes[0]} ranks, but {machine.name} has"
            f" {machine.nodes} x {machine.everyone.lanes}; nearest: --nodes {len(lanes)} --lanes"
            f" {lanes[0]}"
        )
    found = FitTask(series, replace(on, native=()), place)
    if sum(lanes) == 1 or (series.kind == ALL_REDUCE and found.group.size == 1):
        raise CommschedError(
            f"{series.path}: {series.title} of one rank shows nothing of a link; measure 2 or more"
        )
    return found


def _check_hosts(series: Series, place: str, nodes: int) -> None:
    """Reject unequal hosts, several hosts for links inside nodes, one host for links between."""
    lanes = series.lanes
    if len(set(lanes)) > 1:
        raise CommschedError(f"{series.path}: hosts have different numbers of ranks: {lanes}")
    if place == "inside" and len(lanes) > 1:
        raise CommschedError(
            f"{series.path}: measured on {len(lanes)} hosts, and a log of links inside a node is of"
            f" one; nearest: between={series.path}"
        )
    if place == "between" and nodes == 1:
        raise CommschedError(
            f"{series.path}: a log of links between nodes is of two nodes or more, and this one or"
            " the machine has one; give it as inside=LOG"
        )


class FittedLinks(NamedTuple):
    """A machine with fitted links, and by place the relative errors of the sizes left out."""

    machine: Machine
    errors: dict[str, list[float]]


def fitted(machine: Machine, tasks: Sequence[FitTask]) -> FittedLinks:
    """Fit latency and rate of the links inside and between nodes, or of levels; record the errors.

    The fit is least squares of logarithms over two thirds of the sizes, damped towards the
    machine's own numbers. A number on which no series depends stays as it is. A series of
    all-reduces of all ranks also becomes the machine's measured all-reduce.
    """
    _check_sizes(tasks)
    machine, *starts = (_start(on, tasks) for on in (machine, *(each.on for each in tasks)))
    tasks = [replace(each, on=on) for each, on in zip(tasks, starts, strict=True)]
    factors: dict[str, float] = {}
    stages = list(_stages(machine, tasks))
    for names, some in stages:
        names = [name for name in names if _shown(name, some)]
        # The predicted algorithm changes with the links, so the error has several local minima.
        corners = [_doubt(names) * signs / 2 for signs in product((-1.0, 1.0), repeat=len(names))]
        factors |= _fit(some, factors, names, corners) if names else {}
    if len(stages) > 1 and factors:
        factors = _fit(tasks, {}, list(factors), [np.log([*factors.values()])])
    predicted = [each.seconds(factors) for each in tasks]
    held, errors = [], dict[str, list[float]]()
    for each, mine in zip(tasks, predicted, strict=True):
        for point, seconds, out in zip(each.points, mine.tolist(), each.left_out, strict=True):
            if out:
                name = f"{each.series.title} {nbytes(point[0])}"
                held.append(HeldOut(name=name, predicted=seconds, measured=point[1]))
                errors.setdefault(each.place, []).append(held[-1].error)
    sums = [
        each.series
        for each in tasks
        if each.series.kind == ALL_REDUCE and each.group.size == machine.size
    ]
    if sums:
        sizes, times = zip(*sums[-1].points, strict=True)
        rising = np.maximum.accumulate(times).tolist()
        machine = replace(machine, native=tuple(zip(sizes, rising, strict=True)))
    told = f"fitted to {', '.join(dict.fromkeys(Path(t.series.path).name for t in tasks))}"
    source = f"{machine.source}; links {told}"
    scaled = scaled_links(machine, factors, told)
    return FittedLinks(replace(scaled, held_out=tuple(held), source=source), errors)


def _check_sizes(tasks: Sequence[FitTask]) -> None:
    """Reject a series with too few sizes that can be predicted."""
    for each in tasks:
        if len(each.points) < LEAST:
            have = count(len(each.points), "size") if each.points else "no size"
            raise CommschedError(
                f"{each.series.path}: {each.series.title} has {have} of {nbytes(each.least)} or"
                f" more, and a link is fitted to {LEAST} of these at least; measure larger ones"
            )


def _start(machine: Machine, tasks: Sequence[FitTask]) -> Machine:
    """Return the machine with links from which a fit of factors can reach the measured times."""
    for each in tasks:
        machine = relinked_at(machine, each.place, partial(_started, each))
    return machine


def _started(task: FitTask, link: Link) -> Link:
    """Make the latency positive, and limit both overheads together to half of the shortest time."""
    if task.series.kind == STREAM:
        return link
    least = min(seconds for _, seconds in task.points)
    return replace(link, latency=link.latency or least, overhead=min(link.overhead, least / 4))


def _stages(
    machine: Machine, tasks: Sequence[FitTask]
) -> Iterator[tuple[list[str], list[FitTask]]]:
    """Yield names of factors with the tasks that show them: the two places, then each level."""
    plain = [each for each in tasks if not each.ranks]
    if plain:
        yield [f"{what} {place}" for place in PLACES for what in ("latency", "bytes")], plain
    for level in machine.levels:
        some = [each for each in tasks if each.ranks and each.place == level.name]
        if some:
            shares = ["oversubscription"] if level.oversubscription else []
            yield [f"{what} {level.name}" for what in ("latency", "bytes", *shares)], some


def _shown(name: str, tasks: Sequence[FitTask]) -> bool:
    """Tell whether a factor changes the prediction of any task."""
    tried = np.exp(_doubt([name])[0] * np.array([-1.0, 0.0, 1.0]))
    found = ([each.seconds({name: by}) for by in tried.tolist()] for each in tasks)
    return any(bool(np.ptp(seconds, axis=0).any()) for seconds in found)


def _doubt(names: Sequence[str]) -> Floats:
    """Return the expected error of the logarithm of each factor: (names,)."""
    return np.array([DOUBT[name.split()[0]] for name in names])


def _fit(
    tasks: Sequence[FitTask], known: Factors, names: Sequence[str], starts: Sequence[Floats]
) -> dict[str, float]:
    """Fit the named factors while the known ones stay fixed; starts: initial logarithms."""
    real = [np.array([seconds for _, seconds in each.points]) for each in tasks]

    def factors(logs: Floats) -> dict[str, float]:
        return {**known, **dict(zip(names, np.exp(logs).tolist(), strict=True))}

    def errors(logs: Floats) -> Floats:
        found = []
        for each, seen in zip(tasks, real, strict=True):
            fits = ~each.left_out
            found.append(np.log(each.seconds(factors(logs))[fits] / seen[fits]))
        return np.concatenate(found)

    return factors(least_squares(errors, _doubt(names), starts))
