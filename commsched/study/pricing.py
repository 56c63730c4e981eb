"""The row of a cell: its plan priced by the planner's clocks, or simulated."""

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from commsched.cost.price import exchange, price
from commsched.errors import CommschedError
from commsched.exchange.method import resolved
from commsched.exchange.pair import LIBRARY
from commsched.exchange.registry import find_method
from commsched.machine.change import PORT
from commsched.machine.library import Algorithm, algorithm_of
from commsched.machine.model import Device, Group, Machine
from commsched.machine.ports import reach
from commsched.net.bucket import BucketSpec
from commsched.plan.model import Launch, Plan
from commsched.planner.baseline import OF_LIBRARY
from commsched.planner.limits.memory import needed
from commsched.planner.make_plan import checked, make_plan
from commsched.planner.request import Request
from commsched.planner.search.bound import lower_bound
from commsched.planner.search.prices import PriceTables
from commsched.planner.search.problem import BASELINES, Problem
from commsched.planner.search.shortlist import Shortlist
from commsched.program.registry import STRATEGIES
from commsched.simulate.engine import STEPS, simulate
from commsched.study.cells import NEAR, SAME, Cell
from commsched.timeline.totals import Totals, median
from commsched.units import nbytes, significant

COLUMNS = (
    "cell",
    "net",
    "machine",
    "nodes",
    "ranks",
    "port_bits_per_second",
    "set",
    "strategy",
    "planner",
    "allow",
    "method",
    "compute",
    "scale",
    "status",
    "source",
    "step_seconds",
    "exposed_seconds",
    "sent_bytes_per_rank",
    "memory_bytes_per_rank",
    "bound_seconds",
    "priced_step_seconds",
    "launches",
    "methods",
    "sentence",
)
OK, FAILED = "ok", "failed"
PRICED, SIMULATED = "priced", "simulated"
SAMPLE = 720_720  # elements, which nearly every number of ranks divides
REACH = 2**30  # elements of the curve that all nets on a machine share; larger nets have their own

Row = dict[str, Any]


class _Priced(NamedTuple):
    """What the planner's clocks say of a plan."""

    plan: Plan
    step: float  # s
    exposed: float  # s


class _Tables:
    """What is known of a machine's prices, for all nets."""

    def __init__(self) -> None:
        self.library = PriceTables()
        self.of_load: dict[tuple[str, ...], PriceTables] = {}
        self.bounds: dict[tuple[str, ...], float] = {}
        self.sent: dict[tuple[BucketSpec, str], float] = {}

    def tables(self, cell: Cell) -> PriceTables:
        """Return the tables of a net: its own curves, and prices that all nets share."""
        found = self.of_load.setdefault(cell.load, PriceTables())
        found.exact, found.played = self.library.exact, self.library.played
        return found

    def bytes_sent(self, plan: Plan) -> float:
        """Bytes that a rank sends in a step, the mean over the ranks."""
        return sum(self._sent(plan, launch) for launch in plan.launches)

    def _sent(self, plan: Plan, launch: Launch) -> float:
        spec, group = plan.spec(launch), plan.group(launch)
        if all(law.law == "dense" for law, *_ in spec.pieces):
            spec = BucketSpec.uniform(spec.numel)
        key = spec, launch.method
        if key not in self.sent:
            method = find_method(launch.method)
            if method.library and group.size > 1:  # its schedules send as many times all bytes
                taken = algorithm_of(plan.machine, group, 4.0 * spec.numel)
                share = self._share(plan.machine, group, taken)
                self.sent[key] = share * spec.numel
            else:
                self.sent[key] = price(method, spec, plan.machine, group, limit=0).sent
        return self.sent[key]

    def _share(self, machine: Machine, group: Group, taken: Algorithm) -> float:
        """Bytes that a rank sends by a library's algorithm for each element."""
        key = BucketSpec.uniform(SAMPLE), taken.collective
        if key not in self.sent:
            (phase,) = map(resolved, find_method(LIBRARY).phases(key[0], group))
            start = np.zeros(group.size)
            played = exchange(
                phase.schedule, phase.payload, machine, group, start, limit=0, taken=taken
            )
            self.sent[key] = float(played.sent.mean()) / SAMPLE
        return self.sent[key]


@lru_cache(maxsize=NEAR)
def _tables_of(place: tuple[str, ...]) -> _Tables:
    return _Tables()


def row(cell: Cell) -> Row:
    """Return the row of a cell; a plan that cannot be made has the reason as its sentence."""
    found: Row = {name: "" for name in COLUMNS}
    found |= {axis: "" if word == SAME else word for axis, word in cell.words.items()}
    for kind in ("net", "machine"):
        found[kind] = found[kind].rpartition("/")[2].removesuffix(".json")
    bandwidth = found.pop("bandwidth")
    found |= {"cell": cell.digest, "status": FAILED}
    try:
        if bandwidth:
            found["port_bits_per_second"] = significant(8 * PORT.read(bandwidth, "bandwidth"))
        request = cell.request()
        found |= _place(request.machine)
        return found | _numbers(cell, request) | {"status": OK}
    except CommschedError as error:
        return found | {"sentence": " ".join(str(error).split())}


def _place(machine: Machine) -> Row:
    found = reach(machine)
    port = "" if found is None else significant(8 * found.per_node / (found.ports or found.ranks))
    return {"nodes": machine.nodes, "ranks": machine.size, "port_bits_per_second": port}


def _numbers(cell: Cell, request: Request) -> Row:
    """Plan, and describe the plan."""
    known = _tables_of(cell.place)
    request = checked(request, cell.planner)
    priced = _priced(cell, request, known)
    plan = make_plan(request, cell.planner) if priced is None else priced.plan
    bound = plan.bound or _bound(cell, request, known)
    memory = needed(plan)
    found: Row = {
        "memory_bytes_per_rank": significant(memory),
        "launches": len(plan.launches),
        "methods": _methods(plan),
        "sentence": _fit(memory, plan.machine.device),
    }
    if priced is not None:
        found |= {"source": PRICED, "exposed_seconds": significant(priced.exposed)}
        found["sent_bytes_per_rank"] = significant(known.bytes_sent(plan))
        found["step_seconds"] = found["priced_step_seconds"] = significant(priced.step)
    if priced is None or cell.simulate:
        totals = _simulated(plan, known)
        step, exposed, sent = map(median, (totals.iteration, totals.exposed, totals.sent))
        assert step is not None
        assert exposed is not None
        assert sent is not None
        found |= {
            "source": SIMULATED,
            "step_seconds": significant(step),
            "exposed_seconds": significant(exposed),
            "sent_bytes_per_rank": significant(sent),
        }
    if bound:
        found["bound_seconds"] = significant(min(bound, found["step_seconds"]))
    return found


def _priced(cell: Cell, request: Request, known: _Tables) -> _Priced | None:
    """Price the plan of another system's planner, without reasons; None if others make it."""
    if cell.planner not in BASELINES or request.strategy != "sync" or not request.net.tensors:
        return None
    methods = request.methods(request.machine.everyone)
    if cell.planner in OF_LIBRARY and any(method.name == LIBRARY for method in methods):
        problem = _of_library(cell, request, known)
    else:
        problem = Problem(request, tables=known.tables(cell))
    candidate = problem.within(BASELINES[cell.planner](problem))
    step, exposed = problem.evaluator.exposed(candidate)
    plan = replace(problem.plan(candidate, cell.planner), iteration=step)
    return _Priced(plan, step, exposed)


def _of_library(cell: Cell, request: Request, known: _Tables) -> Problem:
    """Return a problem whose buckets the library sums; all nets share the curve of its price."""
    kept = Shortlist.of([find_method(LIBRARY)])
    problem = Problem(request, kept=kept, tables=known.library)
    if problem.prices.most > REACH:
        return Problem(request, kept=kept, tables=known.tables(cell))
    problem.prices.least, problem.prices.most = 1, REACH
    return problem


def _bound(cell: Cell, request: Request, known: _Tables) -> float:
    """The bound by ports, of plans that sum all gradients in every step; 0 for others."""
    if request.strategy != "sync" or not request.net.tensors:
        return 0.0
    if cell.load not in known.bounds:
        problem = _of_library(cell, request, known)
        known.bounds[cell.load] = lower_bound(problem, by_ports=True)
    return known.bounds[cell.load]


def _simulated(plan: Plan, known: _Tables) -> Totals:
    """Simulate a plan: without jitter, two steps of a strategy whose steps are alike tell all."""
    alike = plan.machine.jitter == 0.0 and STRATEGIES[plan.strategy].sums_every_step
    return simulate(plan, 1 + (2 if alike else STEPS), known=known.library.played).totals


def _methods(plan: Plan) -> str:
    """Count the launches of each method, the most frequent first."""
    counted = Counter(launch.method for launch in plan.launches)
    return ", ".join(f"{name} x {number}" for name, number in counted.most_common())


def _fit(wanted: float, device: Device) -> str:
    if wanted <= device.memory:
        return ""
    limit = nbytes(device.memory)
    return f"does not fit: a rank needs {nbytes(wanted)}, and {device.name} has {limit}"
