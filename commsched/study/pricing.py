"""The row of a cell: its plan priced by the planner's clocks, or simulated."""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from commsched.cost.price import exchange, price
from commsched.errors import CommschedError
from commsched.exchange.method import resolved
from commsched.exchange.pair import LIBRARY
from commsched.exchange.registry import find_method
from commsched.machine.library import Algorithm, PipelinedTrees, algorithm_of
from commsched.machine.model import Device, Group, Machine
from commsched.net.bucket import BucketSpec
from commsched.plan.model import Plan
from commsched.planner.auto.rows import times
from commsched.planner.baseline import OF_LIBRARY
from commsched.planner.limits.memory import needed
from commsched.planner.make_plan import by_planner, checked, make_plan
from commsched.planner.request import Request
from commsched.planner.search.bound import lower_bound
from commsched.planner.search.prices import Prices, PriceTables, make_curves
from commsched.planner.search.problem import BASELINES, Problem
from commsched.planner.search.shortlist import Shortlist
from commsched.planner.space import Candidate, spec_of
from commsched.program.registry import STRATEGIES
from commsched.quantities import DENSITY, PORT, POSITIVE
from commsched.study.cells import NEAR, SAME, Cell, short_name
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
    "density",
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
    "batches",
    "sentence",
)
OK, FAILED = "ok", "failed"
PRICED, SIMULATED = "priced", "simulated"
SAMPLE = 720_720  # elements, which nearly every number of ranks divides
REACH = 2**30  # elements of the curve shared by all nets on a machine; larger nets have their own

Row = dict[str, Any]


class _Priced(NamedTuple):
    """The numbers of a plan by the planner's clocks."""

    plan: Plan
    step: float  # s
    exposed: float  # s
    sent: float  # B


class _Known:
    """The known prices of a machine, for all nets that compute on its cores, or for all others."""

    def __init__(self) -> None:
        self.library = PriceTables()
        self.problems: dict[tuple[tuple[str, ...], bool], Problem] = {}
        self.bounds: dict[tuple[str, ...], float] = {}
        self.sent: dict[tuple[BucketSpec | int, str], float] = {}

    def problem(self, cell: Cell, request: Request, library: bool) -> Problem:
        """Return a cell's problem; `library`: only library sums, on one curve for all nets."""
        key = cell.load, library
        if key not in self.problems:
            own = PriceTables()
            own.exact, own.played = self.library.exact, self.library.played
            if library and request.net.numel <= REACH:
                kept = Shortlist.of([find_method(LIBRARY)])
                made = Problem(request, kept=kept, tables=self.library)
                made.prices.least, made.prices.most = 1, REACH
            else:
                made = Problem(request, tables=own)
            self.problems[key] = made
        return self.problems[key]

    def bytes_sent(self, problem: Problem, candidate: Candidate) -> float:
        """Return the bytes that a rank sends in a step, the mean over the ranks."""
        methods, net = problem.prices.methods, problem.request.net
        total = 0.0
        for made, number in candidate.choices:
            method = methods[number]
            key = spec_of(made, net) if made.sparse else made.numel, method.name
            if key not in self.sent:
                machine = problem.request.machine
                if method.library and machine.size > 1:
                    self.sent[key] = self._by_library(machine, made.numel)
                else:
                    spec = BucketSpec.uniform(made.numel) if isinstance(key[0], int) else key[0]
                    self.sent[key] = price(method, spec, machine, machine.everyone, limit=0).sent
            total += self.sent[key]
        return total

    def _by_library(self, machine: Machine, numel: int) -> float:
        """Return the bytes that a rank sends in a sum by the machine's library."""
        taken = algorithm_of(machine, machine.everyone, 4.0 * numel)
        return self._share(machine, machine.everyone, taken) * numel

    def _share(self, machine: Machine, group: Group, taken: Algorithm) -> float:
        """Return the B per element that a rank sends by a library's algorithm, at any size."""
        key = SAMPLE, taken.collective
        if key not in self.sent:
            self.sent[key] = _share_of(machine, group, taken)
        return self.sent[key]


_SHARES: dict[tuple[Group, str, PipelinedTrees | None], float] = {}  # no link's speed changes bytes


def _share_of(machine: Machine, group: Group, taken: Algorithm) -> float:
    """Return the B per element that a rank of a group sends by an algorithm, on any machine."""
    key = group, taken.collective, taken.pipeline
    if key not in _SHARES:
        spec = BucketSpec.uniform(SAMPLE)
        (phase,) = map(resolved, find_method(LIBRARY).phases(spec, group))
        start = np.zeros(group.size)
        played = exchange(
            phase.schedule, phase.payload, machine, group, start, limit=0, taken=taken
        )
        _SHARES[key] = float(played.sent.mean()) / SAMPLE
    return _SHARES[key]


@lru_cache(maxsize=NEAR)
def _known_of(place: tuple[str, ...], occupies_cores: bool) -> _Known:
    return _Known()


def row(cell: Cell) -> Row:
    """Return the row of a cell; a plan that cannot be made has the reason as its sentence."""
    found: Row = {name: "" for name in COLUMNS}
    found |= {axis: "" if word == SAME else word for axis, word in cell.words.items()}
    for kind in ("net", "machine"):
        found[kind] = short_name(found[kind])
    bandwidth = found.pop("bandwidth")
    found |= {"cell": cell.digest, "status": FAILED}
    try:
        if bandwidth:
            found["port_bits_per_second"] = significant(8 * PORT.read(bandwidth, "bandwidth"))
        for axis, quantity in (("density", DENSITY), ("scale", POSITIVE)):
            if found[axis]:
                found[axis] = quantity.read(found[axis], axis)
        request = cell.request()
        found |= _place(request.machine)
        return found | _numbers(cell, request) | {"status": OK}
    except CommschedError as error:
        return found | {"sentence": " ".join(str(error).split())}


def prepare(cells: Iterable[Cell]) -> None:
    """Price the library sums that the rows of some cells need, on all their machines at once."""
    seen: set[tuple[str, ...]] = set()
    wanted: list[tuple[Prices, int]] = []
    for cell in cells:
        if cell.place in seen or cell.planner not in OF_LIBRARY:
            continue
        with suppress(CommschedError):  # the cell's row states the error
            request = checked(cell.request(), cell.planner)
            known = _known_of(cell.place, request.net.occupies_cores)
            if _planned_here(cell, request) and LIBRARY not in request.without:
                seen.add(cell.place)
                problem = known.problem(cell, request, library=True)
                wanted.append((problem.prices, problem.named(LIBRARY)))
    make_curves(wanted)


def _place(machine: Machine) -> Row:
    per_byte = (machine.between if machine.nic is None else machine.nic).per_byte
    port = significant(8 / per_byte) if machine.nodes > 1 and per_byte else ""
    return {"nodes": machine.nodes, "ranks": machine.size, "port_bits_per_second": port}


def _numbers(cell: Cell, request: Request) -> Row:
    """Plan, and describe the plan."""
    known = _known_of(cell.place, request.net.occupies_cores)
    request = checked(request, cell.planner)
    priced = _priced(cell, request, known)
    plan = make_plan(request, cell.planner) if priced is None else priced.plan
    plan = by_planner(plan, cell.planner)
    bound = plan.bound or _bound(cell, request, known)
    memory = needed(plan)
    found: Row = {
        "memory_bytes_per_rank": significant(memory),
        "batches": STRATEGIES[plan.strategy].batches(plan),
        "launches": len(plan.launches),
        "methods": _methods(plan),
        "sentence": _fit(memory, plan.machine.device),
    }
    if priced is not None:
        found |= {"source": PRICED, "exposed_seconds": significant(priced.exposed)}
        found["sent_bytes_per_rank"] = significant(priced.sent)
        found["step_seconds"] = found["priced_step_seconds"] = significant(priced.step)
    if priced is None or cell.simulate:
        simulated = times(plan, known.library.played)
        found |= {
            "source": SIMULATED,
            "step_seconds": significant(simulated.step),
            "exposed_seconds": significant(simulated.exposed),
            "sent_bytes_per_rank": significant(simulated.sent),
        }
    if bound:
        found["bound_seconds"] = significant(min(bound, found["step_seconds"]))
    return found


def _priced(cell: Cell, request: Request, known: _Known) -> _Priced | None:
    """Price the plan of another system's planner, without reasons; None for other plans."""
    if not _planned_here(cell, request):
        return None
    library = cell.planner in OF_LIBRARY and LIBRARY not in request.without
    problem = known.problem(cell, request, library)
    candidate = problem.within(BASELINES[cell.planner](problem))
    step, exposed = problem.evaluator.exposed(candidate)
    plan = replace(problem.plan(candidate, cell.planner), iteration=step)
    return _Priced(plan, step, exposed, known.bytes_sent(problem, candidate))


def _planned_here(cell: Cell, request: Request) -> bool:
    """Tell whether another system's planner makes the plan, without reasons."""
    return cell.planner in BASELINES and request.strategy == "sync" and bool(request.net.tensors)


def _bound(cell: Cell, request: Request, known: _Known) -> float:
    """Return the bound by ports for plans that sum all gradients in every step; 0 for others."""
    if request.strategy != "sync" or not request.net.tensors:
        return 0.0
    if cell.load not in known.bounds:
        problem = known.problem(cell, request, library=True)
        known.bounds[cell.load] = lower_bound(problem, by_ports=True)
    return known.bounds[cell.load]


def _methods(plan: Plan) -> str:
    """Count the launches of each method, the most frequent first."""
    counted = Counter(launch.method for launch in plan.launches)
    return ", ".join(f"{name} x {number}" for name, number in counted.most_common())


def _fit(wanted: float, device: Device) -> str:
    if wanted <= device.memory:
        return ""
    limit = nbytes(device.memory)
    return f"does not fit: a rank needs {nbytes(wanted)}, and {device.name} has {limit}"
