"""How fast the planner is, and how its plans compare with the baselines' and the bound."""

import time
from collections.abc import Iterator

import numpy as np

from commsched import shipped
from commsched.bench.optimum import INSTANCES, MOST, instance, optimum, searched
from commsched.bench.row import Row
from commsched.ir import file as graph_file
from commsched.machine import file as machine_file
from commsched.machine.model import resized
from commsched.planner import Request, make_plan
from commsched.planner.best import Search
from commsched.planner.problem import BASELINES, Problem
from commsched.planner.timing import iteration
from commsched.planner.units import Choice

COLUMNS = 8192  # candidates of 314 launches that are evaluated
FAR = 1.1  # baselines that the fast evaluation puts beyond that are not simulated


def rows() -> Iterator[Row]:
    """Two nets for speed, then every net on every machine, as it is shipped, for quality."""
    list(BASELINES)  # importing the planners is no part of planning
    yield from _speed("resnet101", "p3.16xlarge", 4, ("< 50 ms", "< 1 s"))
    yield _evaluations("resnet101", "p3.16xlarge", 4)
    yield from _speed("gpt3-175b", "h100-8x400", 16, ("-", "< 5 s"))
    yield _optimum()
    for net in shipped.names("nets"):
        yield _quality(net)


def _request(net: str, machine: str, nodes: int) -> Request:
    on = resized(machine_file.load(machine), nodes)
    return Request(graph=graph_file.load(net), machine=on)


def _speed(net: str, machine: str, nodes: int, bars: tuple[str, str]) -> Iterator[Row]:
    """First plan and converged plan: the least of three, and one."""
    request = _request(net, machine, nodes)
    what = f"{len(request.graph.tensors)} tensors ({net}), {request.machine.size} ranks"
    begin, first = 0.0, np.inf
    for _ in range(3):
        begin = time.perf_counter()
        search = Search(request, lambda: False)
        first = min(first, time.perf_counter() - begin)
    shown = f"{len(search.first.choices)} launches, iteration {search.least * 1e3:.5g} ms"
    yield Row(f"first plan, {what}", first, shown, bars[0])
    search.run()
    plan = search.plan()
    seconds = time.perf_counter() - begin
    gap = max(plan.iteration / plan.bound - 1, 0.0)
    shown = (
        f"{len(plan.launches)} launches, iteration {plan.iteration * 1e3:.5g} ms, within"
        f" {gap:.2%} of the bound"
    )
    yield Row("converged, the same", seconds, shown, bars[1])


def _evaluations(net: str, machine: str, nodes: int) -> Row:
    """Candidates with a launch per tensor, each with methods of its own."""
    problem = Problem(_request(net, machine, nodes))
    methods = problem.prices.plain
    choices = [Choice(made, method) for made in problem.tensors for method in methods]
    priced = problem.evaluator.rows(choices)
    count = len(problem.tensors)
    drawn = np.random.default_rng(0).integers(0, len(methods), (count, COLUMNS))
    index = np.arange(count)[:, None] * len(methods) + drawn
    begin = time.perf_counter()
    problem.evaluator.iterations(priced, index, True)
    seconds = time.perf_counter() - begin
    rate = f"{COLUMNS / seconds:.3g} candidates/s"
    return Row(f"evaluations, {count} launches ({net})", seconds, rate, ">= 50,000 candidates/s")


def _optimum() -> Row:
    """Our search alone over the optimum, on random small instances."""
    begin = time.perf_counter()
    ratios = []
    for seed in range(INSTANCES):
        problem = instance(seed)
        ratios.append(searched(problem).least / optimum(problem))
    seconds = time.perf_counter() - begin
    shown = f"at most {max(ratios):.4f} of the optimum, {np.mean(ratios):.5f} in the mean"
    return Row(f"search alone, {INSTANCES} random instances", seconds, shown, f"<= {MOST:g}")


def _quality(net: str) -> Row:
    """Our simulated iteration over that of the best baseline, on every shipped machine."""
    begin = time.perf_counter()
    ratios = []
    for machine in shipped.names("machines"):
        request = Request(graph=graph_file.load(net), machine=machine_file.load(machine))
        ours = iteration(make_plan(request))
        problem = Problem(request)
        found = [BASELINES[name](problem) for name in BASELINES]
        seconds = [problem.evaluator.one(candidate) for candidate in found]
        least = min(seconds)
        best = min(
            iteration(problem.plan(candidate, "bench"))
            for candidate, estimate in zip(found, seconds, strict=True)
            if estimate <= min(FAR * ours, least * FAR) or estimate == least
        )
        ratios.append(ours / best)
    shown = f"{min(ratios):.4f} to {max(ratios):.4f} of the best baseline on {len(ratios)} machines"
    return Row(f"iteration of {net}", time.perf_counter() - begin, shown, "<= 1 on each")
