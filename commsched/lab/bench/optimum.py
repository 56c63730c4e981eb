"""Random small instances of planning, and their optimum by exhaustive search."""

from itertools import product

import numpy as np

from commsched.machine.model import CodecRate, Device, Link, Machine, placement
from commsched.net.graph import Layer, Net, Tensor
from commsched.net.sparsity import Sparsity
from commsched.planner.request import Request
from commsched.planner.search.candidates import Search
from commsched.planner.search.problem import Problem
from commsched.planner.search.shortlist import Shortlist
from commsched.planner.space import MethodChoice, bucket

INSTANCES = 300
MOST = 1.02  # largest allowed iteration of our search without exact solving, over the optimum
METHODS = ("ring+dense", "doubling+dense", "doubling+fp16", "all-gather+coo", "tree+dense")
SLOW = CodecRate(encode=1e-9, add=1e-9, decode=1e-9, fixed=1e-5, source="drawn")
DEVICE = Device(
    name="drawn",
    memory=1e9,
    bandwidth=1e11,
    flops=1e12,
    codecs={"fp16": SLOW, "coo": SLOW},
    source="drawn",
)


def instance(seed: int) -> Problem:
    """Draw at most 8 tensors and 4 methods on a machine of random speeds; layers take 0 to 3 ms."""
    rng = np.random.default_rng(seed)
    layers = []
    for i in range(rng.integers(1, 9)):
        density = 10 ** rng.uniform(-3, 0)
        law = Sparsity(law="uniform", density=density) if rng.random() < 0.3 else Sparsity()
        size = int(10 ** rng.uniform(0, 6))
        layers.append(
            Layer(
                name=f"l{i}",
                forward=float(rng.uniform(0, 1e-3)),
                backward=float(rng.uniform(0, 2e-3)),
                tensors=(Tensor(name=f"l{i}.weight", shape=(size,), sparsity=law),),
            )
        )
    net = Net(name="random", layers=tuple(layers), source="drawn")
    on = _machine(rng)
    request = Request(net=net, machine=on, lossy=("fp16",))
    names = rng.choice(METHODS, rng.integers(1, 5), replace=False)
    methods = [m for m in request.methods(on.everyone) if m.name in names]
    return Problem(request, kept=Shortlist.of(methods))


def _machine(rng: np.random.Generator) -> Machine:
    link = Link(
        latency=10 ** rng.uniform(-6, -3),
        overhead=1e-6,
        per_byte=10 ** rng.uniform(-10, -8),
        source="drawn",
    )
    return Machine(
        name="drawn",
        node_of_rank=placement(1, int(rng.choice([2, 3, 4, 8]))),
        inside=link,
        between=link,
        nic=None,
        device=DEVICE,
        overlap=float(rng.choice([1.0, 0.6])),
        source="drawn",
    )


def optimum(problem: Problem) -> float:
    """Return the shortest iteration, s, over all buckets of neighbours and all methods."""
    units, late = [b.units[0] for b in problem.tensors], True
    pool: dict[tuple[int, int, int], int] = {}
    choices: list[MethodChoice] = []
    for start in range(len(units)):
        for stop in range(start + 1, len(units) + 1):
            for method in problem.prices.free:
                pool[start, stop, method] = len(choices)
                choices.append(MethodChoice(bucket(units[start:stop]), method))
    columns = []
    for cuts in product((False, True), repeat=len(units) - 1):
        ends = [*(i + 1 for i, cut in enumerate(cuts) if cut), len(units)]
        runs = list(zip([0, *ends], ends, strict=False))
        for methods in product(problem.prices.free, repeat=len(runs)):
            columns.append([pool[*run, m] for run, m in zip(runs, methods, strict=True)])
    index = np.full((len(units), len(columns)), len(choices))
    for column, line in zip(index.T, columns, strict=True):
        column[: len(line)] = line
    rows = problem.evaluator.rows(choices)
    return float(problem.evaluator.iterations(rows, index, late).min())


def least(search: Search, problem: Problem) -> float:
    """Return the shortest iteration, s, that a search has found with the instance's methods."""
    given = {method.name for method in problem.kept.methods}
    names = [method.name for method in search.problem.prices.methods]
    return min(
        seconds
        for seconds, candidate, _ in search.found
        if {names[choice.method] for choice in candidate.choices} <= given
    )


def searched(problem: Problem, small: int = 0) -> Search:
    """Search with the instance's methods; solve at most `small` candidates exactly."""
    search = Search(problem.request, exact=small, kept=problem.kept)
    search.run()
    return search
