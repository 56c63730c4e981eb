"""The fast evaluation of a candidate against the simulated timeline of the same plan."""

from collections.abc import Set
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsched.machine.model import CodecRate, Machine
from commsched.net.graph import Layer, Net, Tensor
from commsched.net.measured import PROCESSOR, Measured
from commsched.net.sparsity import Sparsity
from commsched.planner.request import Request
from commsched.planner.search.evaluate import BATCH
from commsched.planner.search.problem import Problem
from commsched.planner.search.shortlist import Shortlist
from commsched.planner.search.timing import iteration
from commsched.planner.space import Bucket, Candidate, MethodChoice, bucket
from commsched.simulate.exchange_costs import Known
from tests.support import sampling
from tests.support.small_plans import FAST, graph, machine

METHODS = {"ring+dense", "direct+dense", "halving-doubling+fp16", "native+dense", "all-gather+coo"}
PHASED = METHODS | {"zen", "dsar"}
SIZES = st.lists(st.integers(1, 10**6), min_size=1, max_size=8)
SECONDS = st.sampled_from([0.0, 1e-5, 3e-4, 2e-3])


@st.composite
def nets(draw: st.DrawFn) -> Net:
    """Layers of one or two tensors, some of them sparse, of any speed."""
    layers = []
    for i, size in enumerate(draw(SIZES)):
        law = Sparsity(law="uniform", density=0.01) if draw(st.booleans()) else Sparsity()
        tensors = [Tensor(name=f"l{i}.weight", shape=(size,), sparsity=law)]
        if draw(st.booleans()):
            tensors.append(Tensor(name=f"l{i}.bias", shape=(100,)))
        layers.append(
            Layer(
                name=f"l{i}",
                forward=draw(SECONDS),
                backward=draw(SECONDS),
                tensors=tuple(tensors),
            )
        )
    update, apply = (draw(st.none() | SECONDS) for _ in range(2))
    return Net(
        name="random",
        layers=tuple(layers),
        optimizer=update,
        apply=apply,
        data=draw(SECONDS),
        source="test",
    )


def cut(problem: Problem, draw: st.DataObject) -> Candidate:
    """Some buckets in some order, each with some method."""
    made: list[Bucket] = []
    units = list(problem.units)
    while units:
        count = draw.draw(st.integers(1, len(units)))
        made.append(bucket(units[:count]))
        units = units[count:]
    made = draw.draw(st.permutations(made))
    methods = [draw.draw(st.sampled_from(problem.options(b))) for b in made]
    choices = tuple(MethodChoice(b, m) for b, m in zip(made, methods, strict=True))
    return Candidate(choices, draw.draw(st.booleans()))


def on_cores(net: Net) -> Net:
    return replace(net, measured=Measured(device=PROCESSOR, source="a test"))


def problem_of(net: Net, on: Machine, names: Set[str] = METHODS) -> Problem:
    """All named methods, whichever may be the fastest."""
    request = Request(net=net, machine=on, lossy=("fp16",))
    kept = [m for m in request.methods(on.everyone) if m.name in names]
    return Problem(request, kept=Shortlist.of(kept))


@given(
    net=nets(),
    ranks=st.sampled_from([1, 2, 4, 8]),
    overlap=st.sampled_from([1.0, 0.7, 0.0]),
    cores=st.sampled_from([0, 2]),
    startup=st.sampled_from([0.0, 1e-4]),
    awake=st.sampled_from([1.0, 0.25, 0.0]),
    waking=st.sampled_from([0.0, 1e-4]),
    draw=st.data(),
)
@settings(max_examples=sampling.examples(60))
def test_where_ranks_end_together_it_is_the_simulated_iteration(
    net, ranks, overlap, cores, startup, awake, waking, draw
):
    net = on_cores(net) if waking else net
    on = replace(machine(1, ranks), overlap=overlap, cores=cores * ranks, startup=startup)
    on = replace(on, awake=awake, device=replace(on.device, fixed_gather=startup / 3))
    on = replace(on, wakeup=waking, interpreter=2 * waking)
    problem = problem_of(net, on)
    candidate = cut(problem, draw)
    want = iteration(problem.plan(candidate, "test"))
    # curves over sizes are off by up to 0.2 %, and a block has one element more than another
    assert problem.evaluator.one(candidate) == pytest.approx(want, rel=3e-3, abs=2e-8)


@given(net=nets(), nodes=st.integers(2, 4), lanes=st.integers(1, 3), draw=st.data())
@settings(max_examples=sampling.examples(40))
def test_where_links_differ_it_is_near_the_simulated_iteration(net, nodes, lanes, draw):
    problem = problem_of(net, machine(nodes, lanes))
    candidate = cut(problem, draw)
    want = iteration(problem.plan(candidate, "test"))
    # ranks that end early begin their next exchange early
    assert want * 0.99 <= problem.evaluator.one(candidate) <= want * 1.25


@given(net=nets(), lanes=st.integers(1, 2), cores=st.integers(1, 3), draw=st.data())
@settings(max_examples=sampling.examples(30))
def test_on_shared_cores_it_is_at_least_the_work_and_at_most_the_simulated(net, lanes, cores, draw):
    on = machine(2, lanes)
    slow = CodecRate(encode=3e-9, add=1e-9, decode=3e-9, fixed=1e-4, source="test")
    rates = {"coo": slow, "fp16": slow}
    link = replace(on.between, busy=0.5)
    on = replace(on, device=replace(on.device, codecs=rates), inside=link, between=link)
    problem = problem_of(on_cores(net), replace(on, cores=cores))
    candidate = cut(problem, draw)
    shared = problem.evaluator.one(candidate)
    free = problem_of(on_cores(net), on).evaluator.one(candidate)
    want = iteration(problem.plan(candidate, "test"))
    assert free <= shared <= want * (1 + 5e-3) + 2e-8


@pytest.mark.parametrize("numel", [100_000, 300_000])
def test_coding_longer_than_a_slice_lasts_on_a_shared_core_as_simulated(numel):
    net = graph([numel], seconds=0.0)
    slow = CodecRate(encode=3e-9, add=1e-9, decode=3e-9, fixed=1e-4, source="test")
    on = replace(machine(2, 2), cores=1)
    on = replace(on, device=replace(on.device, codecs={"coo": slow}))
    problem = problem_of(on_cores(net), on, {"all-gather+coo"})
    whole = bucket(problem.units)
    (method,) = problem.options(whole)
    candidate = Candidate((MethodChoice(whole, method),), late=False)
    want = iteration(problem.plan(candidate, "test"))
    assert problem.evaluator.one(candidate) == pytest.approx(want, rel=1e-3)


@pytest.mark.parametrize("overlap", [0.5, 0.0])
def test_a_first_launch_without_a_vote_beside_one_with_it_has_a_time(overlap):
    net = graph([50_000, 400_000])
    mask = replace(net.layers[0].tensors[0], sparsity=Sparsity(law="mask", density=0.02))
    net = replace(net, layers=(replace(net.layers[0], tensors=(mask,)), net.layers[1]))
    for measured in (None, Measured(device=PROCESSOR, source="a test")):
        on = replace(machine(1, 4), overlap=overlap, wakeup=1e-5)
        problem = problem_of(replace(net, measured=measured), on, {"mask", "ring+dense"})
        several = [
            Candidate((MethodChoice(bucket(problem.units[:1]), a), MethodChoice(last, b)), late)
            for last in [bucket(problem.units[1:])]
            for a in problem.options(bucket(problem.units[:1]))
            for b in problem.options(last)
            for late in (False, True)
        ]
        pool = [choice for candidate in several for choice in candidate.choices]
        index = np.arange(len(pool)).reshape(-1, 2).T
        rows = problem.evaluator.rows(pool)
        for late in (False, True):
            assert np.isfinite(problem.evaluator.iterations(rows, index, late)).all()
        for candidate in several:
            want = iteration(problem.plan(candidate, "test"))
            assert want * 0.99 <= problem.evaluator.one(candidate) <= want * 1.25


@given(
    net=nets(),
    cores=st.sampled_from([0, 2, 3]),
    nodes=st.sampled_from([1, 2]),
    draw=st.data(),
    late=st.booleans(),
)
@settings(max_examples=sampling.examples(40))
def test_a_batch_is_its_candidates_one_by_one(net, cores, nodes, draw, late):
    on = replace(machine(nodes, 4), inside=replace(FAST, latency=1e-5), cores=cores)
    slow = CodecRate(encode=3e-9, add=1e-9, decode=3e-9, fixed=1e-4, source="test")
    on = replace(on, device=replace(on.device, codecs={"coo": slow, "fp16": slow}))
    problem = problem_of(net, on, PHASED)
    several = [replace(cut(problem, draw), late=late) for _ in range(4)]
    pool = [choice for candidate in several for choice in candidate.choices]
    rows = problem.evaluator.rows(pool)
    deepest = max(len(c.choices) for c in several)
    index = np.full((deepest, len(several)), len(pool))
    at = 0
    for column, candidate in enumerate(several):
        index[: len(candidate.choices), column] = at + np.arange(len(candidate.choices))
        at += len(candidate.choices)
    want = [problem.evaluator.one(candidate) for candidate in several]
    many = np.tile(index, BATCH // 2)
    found = problem.evaluator.iterations(rows, many, late)
    np.testing.assert_allclose(found, np.tile(want, BATCH // 2), rtol=1e-12)


@given(net=nets(), nodes=st.integers(1, 3), draw=st.data())
@settings(max_examples=sampling.examples(20))
def test_kept_exchanges_change_no_iteration(net, nodes, draw):
    problem = problem_of(net, machine(nodes, 2))
    known: Known = {}
    for _ in range(2):
        plan = problem.plan(cut(problem, draw), "test")
        for _ in range(2):
            assert iteration(plan, known) == pytest.approx(iteration(plan), rel=1e-7, abs=1e-9)
