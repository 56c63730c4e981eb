"""The watch over drift: exchanges slower or faster than predicted, and the refit of the machine.

An exchange's shortest duration over the ranks contains no waiting. The sum of these durations over
a step's launches is compared with the prices; all ranks see equal numbers and notice together.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from commsched.cost.price import price
from commsched.cost.wire import Wire
from commsched.exchange.registry import find_method
from commsched.machine.model import Link, Machine
from commsched.machine.relink import relinked
from commsched.plan.model import Plan
from commsched.program.model import Kind
from commsched.program.registry import STRATEGIES
from commsched.run.engine.engine import Engine
from commsched.run.engine.step_gather import StepGather
from commsched.run.job import agree
from commsched.run.job.clock import now
from commsched.timeline.model import Span
from commsched.timeline.totals import p10_to_p90

Floats = npt.NDArray[np.float64]

PATIENCE = 3  # consecutive steps outside the interval after which the ranks plan anew
SETTLE = 2  # first steps under a plan are not compared: new communicators and buffers are slow
LEAST = 1.25  # factor; the narrowest interval: prices without held-out cells have such errors
APART = 1.3  # factor; a node that differs more from the others gets its own rate
PROBE, FEWEST, MOST = 0.02, 2**16, 2**22  # seconds that a probe should take; its limits in B
WIDEST = 256.0  # factor; the largest change of a fitted rate


class Drifted(NamedTuple):
    """The measured exchanges that left their interval."""

    step: int  # the last measured step
    ratio: float  # measured seconds of a step over the predicted ones, median
    low: float  # lower end of the ratio's interval; `high` is the upper
    high: float
    seconds: Floats  # (launches,) measured, medians


class Drift:
    """The comparison of a run's exchanges with the prices of its plan."""

    def __init__(self, engine: Engine, comm: MPI.Intracomm) -> None:
        self._engine = engine
        self._rank = comm.rank
        self._gather = StepGather(comm, engine.board, "drift", "the seconds")
        self._lasted: dict[int, Floats] = {}  # step -> (launches,) s of its exchanges so far
        engine.recorder.takers.append(self._take)

    def free(self) -> None:
        """End the comparison; all ranks call it."""
        self._engine.recorder.takers.remove(self._take)
        self._gather.free()

    def watch(self, since: int) -> None:
        """Compare with the prices of the engine's plan, from step `since` on."""
        self._gather.take_last()
        self._lasted.clear()
        plan = self._engine.plan
        self._since = since + SETTLE
        self._expected = exchange_seconds(plan, plan.machine)
        self._low, self._high = interval(plan.machine)
        ops = STRATEGIES[plan.strategy].lower(plan, 1, {}).role_of(self._rank).ops
        moved = [op for op in ops if op.kind in (Kind.EXCHANGE, Kind.DECIDE)]
        self._launch = {op.name: op.launch for op in moved}
        self._outside: list[tuple[float, Floats]] = []

    def after(self, step: int) -> Drifted | None:
        """Compare the seconds of the previous step; see `BudgetWatch.after`."""
        gathered = self._gather.take_last()
        if gathered is not None and self._expected.sum() > 0:
            measured, every = gathered
            found = every.min(axis=0)
            ratio = float(found.sum() / self._expected.sum())
            if self._low <= ratio <= self._high:
                self._outside.clear()
            else:
                self._outside.append((ratio, found))
            if len(self._outside) >= PATIENCE:
                seconds = np.median([one for _, one in self._outside], axis=0)
                middle = float(np.median([ratio for ratio, _ in self._outside]))
                return Drifted(measured, middle, self._low, self._high, seconds)
        if step - 1 >= self._since:
            self._ask(step - 1)
        return None

    def _take(self, span: Span) -> None:
        """Add the seconds of an exchange; called in the thread of its stream."""
        launch = self._launch.get(span.name)
        if launch is not None:
            lasted = self._lasted.setdefault(span.step, np.zeros(len(self._expected)))
            lasted[launch] += span.end - span.start

    def _ask(self, step: int) -> None:
        mine = self._lasted.pop(step, np.zeros(len(self._expected)))
        for key in list(self._lasted):  # other threads add keys meanwhile
            if key < step:
                self._lasted.pop(key)
        self._gather.ask(step, mine)


def interval(machine: Machine) -> tuple[float, float]:
    """Return p10 and p90 of measured / predicted seconds in the calibration's held-out cells."""
    ratios = [1.0 / (1.0 + cell.error) for cell in machine.held_out if cell.error > -1.0] or [1.0]
    low, high = p10_to_p90(np.array(ratios), len(ratios))
    # Under compute a transfer proceeds at a share of its rate.
    return min(low, 1 / LEAST), max(high, LEAST) / max(machine.overlap, 0.1)


def exchange_seconds(plan: Plan, machine: Machine) -> Floats:
    """Predict the seconds of each launch's exchanges on a machine: (launches,)."""
    return np.array(
        [
            price(find_method(one.method), plan.spec(one), machine, plan.group(one)).exchange
            for one in plan.launches
        ]
    )


def refit_machine(plan: Plan, seconds: Floats, factors: Sequence[float]) -> tuple[Machine, str]:
    """Return the machine whose prices sum to the measured `seconds`, and a sentence about the fit.

    `factors`: each node's probe time over its planned time; empty: one node. Nodes that differ from
    the others get their own rates; unless most nodes are as planned, the whole class of links is
    scaled.
    """
    machine = plan.machine
    apart: dict[int, float] = {}
    usual = float(np.median(factors)) if len(factors) > 2 else np.inf
    all_of_them = not 1 / APART <= usual <= APART
    if len(factors) > 2:
        apart = {
            node: factor / usual
            for node, factor in enumerate(factors)
            if not 1 / APART <= factor / usual <= APART
        }

    def scaled(by: float) -> Machine:
        if not apart:
            return _scale_all_links(machine, by)
        if all_of_them:
            return _scale_nodes(_scale_all_links(machine, by), apart)
        return _scale_nodes(machine, {node: by * factor for node, factor in apart.items()})

    by = _solve_increasing(
        lambda by: float(exchange_seconds(plan, scaled(by)).sum()), float(seconds.sum())
    )
    told = [f"node {node} x {1 / (by * f):.3g}" for node, f in apart.items()]
    if all_of_them or not apart:
        told.insert(
            0, f"{'between nodes' if machine.nodes > 1 else 'inside the node'} x {1 / by:.3g}"
        )
    return scaled(by), f"rates fitted anew: {', '.join(told)}"


def explains(plan: Plan, machine: Machine, seconds: Floats) -> bool:
    """Tell whether a fitted machine's prices come near the measured `seconds`."""
    ratio = float(exchange_seconds(plan, machine).sum() / max(seconds.sum(), 1e-9))
    return 1 / APART <= ratio <= APART


def _solve_increasing(total: Callable[[float], float], wanted: float) -> float:
    """Return the factor at which a growing function reaches a value, within its limits."""
    low, high = -np.log(WIDEST), np.log(WIDEST)
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if total(float(np.exp(middle))) < wanted else (low, middle)
    return float(np.exp((low + high) / 2))


def _scale_link(link: Link, by: float) -> Link:
    points = tuple((nbytes, seconds * by) for nbytes, seconds in link.points)
    return replace(link, per_byte=link.per_byte * by, points=points, source="fitted during a run")


def _scale_all_links(machine: Machine, by: float) -> Machine:
    def slower(link: Link) -> Link:
        return _scale_link(link, by)

    if machine.nodes == 1:
        scaled = relinked(machine, inside=slower)
    else:
        scaled = relinked(
            machine,
            between=slower,
            port=lambda nic: replace(nic, per_byte=nic.per_byte * by),
        )
    return replace(scaled, native=_scale_native(machine, by))


def _scale_nodes(machine: Machine, factors: dict[int, float]) -> Machine:
    links = dict(machine.overrides)
    for node, by in factors.items():
        link = links.get(node, machine.between)
        if machine.nic is not None:
            link = replace(link, per_byte=max(link.per_byte, machine.nic.per_byte))
        links[node] = _scale_link(link, by)
    slowest = max(*factors.values(), 1.0)
    return replace(machine, overrides=links, native=_scale_native(machine, slowest))


def _scale_native(machine: Machine, by: float) -> tuple[tuple[float, float], ...]:
    return tuple((nbytes, seconds * by) for nbytes, seconds in machine.native)


def probe_nodes(machine: Machine, comm: MPI.Intracomm, beat: Callable[[], None]) -> list[float]:
    """Return each node's message time over the planned time, equal on every rank.

    The first ranks of neighbouring nodes send one message at a time. A node counts by the faster of
    its two pairs, because the partner may be the slow node. No exchange may be under way. `beat` is
    called before each pair.
    """
    nodes = machine.nodes
    if nodes < 3:
        return [1.0] * nodes if nodes == 2 else []
    lead = [machine.node_of_rank.index(node) for node in range(nodes)]
    links = [machine.overrides.get(node, machine.between) for node in range(nodes)]
    found = np.zeros(nodes)
    for node in range(nodes):
        beat()
        after = (node + 1) % nodes
        slow = max(links[node].per_byte, links[after].per_byte)
        size = int(min(max(PROBE / slow if slow else MOST, FEWEST), MOST))
        taken = [_message_seconds(comm, lead[node], lead[after], size) for _ in range(2)]
        planned = max(_planned_seconds(machine, links[i], size) for i in (node, after))
        found[node] = max(agree.gather_numbers(min(taken), comm)) / planned if planned else 1.0
    return [float(min(found[node - 1], found[node])) for node in range(nodes)]


def _planned_seconds(machine: Machine, link: Link, size: int) -> float:
    """Predict the seconds of a message of `size` bytes without other traffic on link and port."""
    wire = Wire.slowest([link], machine.nic.per_byte if machine.nic is not None else 0.0)
    return float(wire.drained(np.array([float(size)]))[0])


def _message_seconds(comm: MPI.Intracomm, source: int, target: int, size: int) -> float:
    """Measure the seconds of one message at its receiver; 0 on other ranks."""
    comm.Barrier()
    ready = np.zeros(1, np.uint8)
    if comm.rank == source:
        comm.Recv(ready, target)
        comm.Send(np.zeros(size, np.uint8), target)
    elif comm.rank == target:
        into = np.empty(size, np.uint8)
        begun = now()
        comm.Send(ready, source)
        comm.Recv(into, source)
        return now() - begun
    return 0.0
