"""The lower bound of nets with zeros: no method and no plan is below it, and it says something."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsched.cost import price
from commsched.exchange.method import Choice, Method
from commsched.exchange.registry import find_method, legal_methods
from commsched.lab.bench.optimum import instance, optimum
from commsched.machine.model import Link, Machine, Nic
from commsched.net.bucket import BucketSpec
from commsched.net.graph import Layer, Net, Tensor
from commsched.net.sparsity import Sparsity
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.planner.search.bound import lower_bound
from commsched.planner.search.problem import Problem
from commsched.planner.search.shortlist import Shortlist
from commsched.planner.search.traffic import least_seconds
from tests.support import sampling
from tests.support.small_plans import graph, machine

SHAPES = [(1, 2), (1, 5), (2, 1), (2, 3), (4, 2)]
LAWS = [
    Sparsity(),
    *(Sparsity(law="uniform", density=d) for d in (1e-3, 0.02, 0.3, 0.97)),
    *(Sparsity(law="zipf", density=d, rows=500) for d in (0.01, 0.4)),
    Sparsity(law="mask", density=0.1),
    Sparsity(law="curve", density=0.01, curve=((1, 0.01), (3, 0.015), (64, 0.2))),
]


def bytes_only(on: Machine, nic: Nic | None = None) -> Machine:
    """A machine on which nothing takes time but the bytes of messages."""
    inside = Link(latency=0.0, overhead=0.0, per_byte=1e-9, source="test")
    between, device = replace(inside, per_byte=4e-9), replace(on.device, bandwidth=1e18)
    return replace(on, inside=inside, between=between, nic=nic, device=device)


def seconds(method: Method, spec: BucketSpec, on: Machine) -> float:
    """What a launch keeps the exchange stream busy for."""
    group, start, total = on.everyone, np.zeros(on.size), 0.0
    for phase in method.phases(spec, group):
        if isinstance(phase, Choice):
            total += float(price.votes(on, group, start).end.max())
            phase = phase.then(phase.expected)
        played = price.exchange(phase.schedule, phase.payload, on, group, start)
        total += float(played.end.max())
    return total


@pytest.mark.by_day(9)
@pytest.mark.parametrize(("law", "shape"), sampling.some([*product(LAWS, SHAPES)], 18))
def test_no_lossless_method_takes_less_for_any_law(shape, law):
    numel = 20_000
    spec = BucketSpec(((law, numel, 0, numel),))
    for nic in (None, Nic(per_node=1, per_byte=5e-9)):
        on = bytes_only(machine(*shape), nic)
        least = least_seconds(law, numel, on).max()
        assert least > 0
        for method in legal_methods(on.everyone, lossless=True):
            if not method.name.startswith("native"):
                assert seconds(method, spec, on) >= least * (1 - 1e-12), method.name


def test_dense_values_need_what_the_ring_and_the_hierarchy_take():
    numel = 24_000  # every rank has whole blocks of them
    for shape, name in (((1, 4), "ring+dense"), ((2, 4), "hierarchical+dense")):
        on = bytes_only(machine(*shape))
        spec = BucketSpec.uniform(numel)
        found = seconds(find_method(name), spec, on)
        # The hierarchy does all that is received inside before what crosses, so that it is tight.
        assert least_seconds(Sparsity(), numel, on).max() == pytest.approx(found, rel=1e-3)


def test_few_non_zeros_need_their_values_and_the_entropy_of_where_they_are():
    numel, density = 10**6, 1e-3
    on = bytes_only(machine(1, 2))
    law = Sparsity(law="uniform", density=density)
    entropy = -(density * np.log2(density) + (1 - density) * np.log2(1 - density)) / 8
    want = 1e-9 * (numel * (4 * density + entropy) - 8)
    assert least_seconds(law, numel, on).max() == pytest.approx(want, rel=1e-9)


def test_a_rank_alone_needs_nothing():
    assert least_seconds(Sparsity(), 10**6, machine(1, 1)).max() == 0


@given(
    density=st.floats(1e-6, 1.0),
    ranks=st.integers(1, 64),
    kind=st.sampled_from(["uniform", "zipf", "mask"]),
)
def test_entropy_is_at_most_a_bit_for_each_thing_that_may_be_hit(density, ranks, kind):
    law = Sparsity(law=kind, density=density, **({"rows": 300} if kind == "zipf" else {}))
    found = law.entropy(9_000, ranks)
    assert 0 <= found <= (300 if kind == "zipf" else 9_000) * (1 + 1e-9)
    assert (found == 0) or kind != "mask"


def test_entropy_of_rows_is_that_of_the_rows_that_are_drawn():
    law, rng = Sparsity(law="zipf", density=0.05, rows=40, exponent=1.2), np.random.default_rng(0)
    hits = np.zeros(40)
    for _ in range(20_000):
        hits[np.unique(law.support(400, rng) // 10)] += 1
    q = hits / 20_000
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = np.nansum(-q * np.log2(q) - (1 - q) * np.log2(1 - q))
    assert law.entropy(400, 1) == pytest.approx(bits, rel=0.02)  # of 20,000 draws


def test_no_bound_is_above_the_optimum_of_nets_with_zeros():
    tight = 0
    for seed in range(80):
        drawn = instance(seed)
        kept = [m for m in drawn.kept.methods if m.lossless]
        problem = (
            Problem(replace(drawn.request, lossy=()), kept=Shortlist.of(kept)) if kept else None
        )
        if problem is None or len(problem.tensors) > 5:
            continue
        best, bound = optimum(problem), lower_bound(problem)
        assert bound <= best * (1 + 1e-9), seed
        clock = problem.clock
        trivial = sum(clock.backward) + sum(clock.forward)
        trivial += problem.request.net.numel * clock.apply
        sparse = any(unit.sparse for made in problem.tensors for unit in made.units)
        tight += sparse and bound > 1.05 * trivial
    assert tight >= 5


def embedding(density: float, numel: int = 4 * 10**6) -> Net:
    tensors = (Tensor(name="e", shape=(numel,), sparsity=Sparsity(law="uniform", density=density)),)
    layers = (Layer(name="e", forward=1e-4, backward=1e-4, tensors=tensors),)
    return Net(name="sparse", layers=layers, source="test")


@pytest.mark.parametrize(("density", "share"), [(0.001, 0.4), (0.01, 0.5), (0.2, 0.6)])
def test_a_plan_for_a_sparse_tensor_is_within_reach_of_its_bound(density, share):
    on = machine(4, 1)
    on = replace(on, device=replace(on.device, bandwidth=1e13))
    made = make_plan(Request(net=embedding(density), machine=on))
    assert share * made.iteration <= made.bound <= made.iteration


def test_what_may_be_lossy_or_is_forced_to_be_needs_nothing_for_sure():
    on, net = machine(4, 1), embedding(0.01)
    lossless = lower_bound(Problem(Request(net=net, machine=on)))
    lossy = lower_bound(Problem(Request(net=net, machine=on, lossy=("topk:0.001",))))
    force = {"e": "all-gather+topk:0.001"}
    forced = lower_bound(Problem(Request(net=net, machine=on, force=force)))
    kept = lower_bound(Problem(Request(net=net, machine=on, force={"e": "ring+dense"})))
    assert forced == lossy < lossless <= kept


def test_a_budget_that_lossy_methods_do_not_meet_leaves_the_bound():
    on, net = machine(4, 1), embedding(0.2)
    lossless = Request(net=net, machine=on)
    tight = replace(lossless, lossy=("topk:0.001",), max_error=0.01)
    assert lower_bound(Problem(tight)) == lower_bound(Problem(lossless))


@settings(deadline=None, max_examples=sampling.examples(6))
@given(sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=4), lanes=st.integers(2, 4))
def test_where_mpis_own_measured_sum_is_fast_the_bound_is_below_it(sizes, lanes):
    net = graph(sizes)
    tensors = replace(net.layers[0].tensors[0], sparsity=Sparsity(law="uniform", density=0.5))
    net = replace(net, layers=(replace(net.layers[0], tensors=(tensors,)), *net.layers[1:]))
    on = replace(machine(1, lanes), native=((1e3, 1e-7), (1e7, 1e-4)))
    made = make_plan(Request(net=net, machine=on), "ddp-25mb")
    problem = Problem(Request(net=net, machine=on))
    assert lower_bound(problem) <= made.iteration * (1 + 1e-9)
