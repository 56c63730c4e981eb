"""Benchmark of the planner: its speed, and its plans against the baselines' and the bound."""

import time
from collections.abc import Iterator, Sequence

import numpy as np

from commsched import shipped
from commsched.errors import CommschedError
from commsched.lab.bench.optimum import INSTANCES, MOST, instance, least, optimum, searched
from commsched.lab.bench.row import BenchRow
from commsched.machine import file as machine_file
from commsched.machine.change import changed
from commsched.machine.model import resized
from commsched.net import file as net_file
from commsched.planner.make_plan import make_plan
from commsched.planner.planners.best import found_by, with_reasons
from commsched.planner.request import Request
from commsched.planner.search.candidates import Search
from commsched.planner.search.improve import SAME
from commsched.planner.search.problem import BASELINES, Problem
from commsched.planner.search.timing import iteration
from commsched.planner.space import Candidate, MethodChoice
from commsched.simulate.exchange_costs import Known

COLUMNS = 8192  # candidates of 314 launches that are evaluated
FAR = 1.1  # baselines that the fast evaluation prices above this are not simulated
PARTS = ("speed", "optimum", "quality")


def rows(
    parts: Sequence[str] = PARTS,
    seeds: range = range(INSTANCES),
    nets: Sequence[str] = (),
    machines: Sequence[str] = (),
    changes: Sequence[str] = (),
) -> Iterator[BenchRow]:
    """Benchmark speed on two nets, optimality on random instances, and quality on machines.

    Empty `nets` or `machines` stand for all shipped ones. changes: KEY=VALUE words
    that change each machine of quality.
    """
    list(BASELINES)  # import the planners before the clock starts
    if "speed" in parts:
        yield from _speed("resnet101", "p3.16xlarge", 4, ("< 50 ms", "< 1 s"))
        yield _evaluations("resnet101", "p3.16xlarge", 4)
        yield from _speed("gpt3-175b", "h100-8x400", 16, ("-", "< 5 s"))
    if "optimum" in parts:
        yield _optimum(seeds)
    for net in nets or shipped.names("nets") if "quality" in parts else ():
        yield _quality(net, machines or shipped.names("machines"), changes)


def _request(net: str, machine: str, nodes: int) -> Request:
    on = resized(machine_file.load(machine), nodes)
    return Request(net=net_file.load(net), machine=on)


def _speed(net: str, machine: str, nodes: int, bars: tuple[str, str]) -> Iterator[BenchRow]:
    """Time the first plan (least of three runs) and the converged plan (one run)."""
    request = _request(net, machine, nodes)
    what = f"{len(request.net.tensors)} tensors ({net}), {request.machine.size} ranks"
    begin, first = 0.0, np.inf
    for _ in range(3):
        begin = time.perf_counter()
        search = Search(request)
        first = min(first, time.perf_counter() - begin)
    shown = f"{len(search.first.choices)} launches, iteration {search.least * 1e3:.5g} ms"
    yield BenchRow(f"first plan, {what}", first, shown, bars[0])
    found = found_by(search)
    plan = with_reasons(found.plan, found.placed)
    seconds = time.perf_counter() - begin
    gap = max(plan.iteration / plan.bound - 1, 0.0)
    shown = (
        f"{len(plan.launches)} launches, iteration {plan.iteration * 1e3:.5g} ms, within"
        f" {gap:.2%} of the bound"
    )
    yield BenchRow("converged, the same", seconds, shown, bars[1])


def _evaluations(net: str, machine: str, nodes: int) -> BenchRow:
    """Time the evaluation of candidates with a launch per tensor and methods of their own."""
    problem = Problem(_request(net, machine, nodes))
    methods = problem.prices.plain
    choices = [MethodChoice(made, method) for made in problem.tensors for method in methods]
    priced = problem.evaluator.rows(choices)
    count = len(problem.tensors)
    drawn = np.random.default_rng(0).integers(0, len(methods), (count, COLUMNS))
    index = np.arange(count)[:, None] * len(methods) + drawn
    begin = time.perf_counter()
    problem.evaluator.iterations(priced, index, True)
    seconds = time.perf_counter() - begin
    rate = f"{COLUMNS / seconds:.3g} candidates/s"
    return BenchRow(
        f"evaluations, {count} launches ({net})", seconds, rate, ">= 50,000 candidates/s"
    )


def _optimum(seeds: range) -> BenchRow:
    """Compare our search alone with the optimum, on random small instances."""
    begin = time.perf_counter()
    ratios = []
    for seed in seeds:
        problem = instance(seed)
        ratios.append(least(searched(problem), problem) / optimum(problem))
    seconds = time.perf_counter() - begin
    worst = seeds[int(np.argmax(ratios))]
    shown = (
        f"at most {max(ratios):.4f} of the optimum (instance {worst}), {np.mean(ratios):.5f} in the"
        " mean"
    )
    what = f"search alone, random instances {seeds.start} to {seeds.stop - 1}"
    return BenchRow(what, seconds, shown, f"<= {MOST:g}")


def candidates(problem: Problem) -> Iterator[tuple[str, Candidate]]:
    """Yield the plans of all baselines that a request and its error budget allow."""
    for name in BASELINES:
        try:
            yield name, problem.within(BASELINES[name](problem))
        except CommschedError:
            continue  # this baseline needs a lossy codec


def _quality(net: str, machines: Sequence[str], changes: Sequence[str]) -> BenchRow:
    """Compare our simulated iteration with the best baseline's, on some machines."""
    begin = time.perf_counter()
    ratios = []
    for machine in machines:
        on = changed(machine_file.load(machine), changes)
        request = Request(net=net_file.load(net), machine=on)
        known: Known = {}
        ours = iteration(make_plan(request), known)
        problem = Problem(request)
        found = [candidate for _, candidate in candidates(problem)]
        seconds = [problem.evaluator.one(candidate) for candidate in found]
        least = min(seconds)
        best = min(
            iteration(problem.plan(candidate, "bench"), known)
            for candidate, estimate in zip(found, seconds, strict=True)
            if estimate <= min(FAR * ours, least * FAR) or estimate == least
        )
        ratios.append(ours / best)
    worst = machines[int(np.argmax(ratios))]
    above = sum(ratio > 1.0 + SAME for ratio in ratios)
    shown = (
        f"{min(ratios):.4f} to {max(ratios):.4f} of the best baseline on {len(ratios)} machines"
        f" (largest on {worst}), above it on {above}"
    )
    return BenchRow(f"iteration of {net}", time.perf_counter() - begin, shown, "<= 1 on each")
