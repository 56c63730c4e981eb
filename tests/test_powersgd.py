"""PowerSGD loses nothing, is exact where a matrix has so few ranks, and starts again after zero."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.errors import CommschedError
from commsched.exchange.lockstep import fresh_states, run_method
from commsched.exchange.registry import METHODS, find_method
from commsched.methods.powersgd import orthonormal, parts_of
from commsched.net.bucket import BucketSpec, Piece
from commsched.net.graph import Tensor
from commsched.net.sparsity import Sparsity
from commsched.planner.request import Request
from commsched.planner.search.dynamic import Segments
from commsched.planner.search.problem import Problem
from commsched.planner.space import spec_of
from tests.support.gradients import bits, group, rounded, spec
from tests.support.small_plans import graph, machine
from tests.test_methods import assert_equal_bits, run, steps

SHAPES = [(1, 1), (1, 3), (2, 2)]


@pytest.mark.parametrize("rank", [1, 2, 4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_powersgd_loses_nothing(shape, rank):
    numel, sent, total, states = 200, 0.0, 0.0, []
    for grads, states in steps(METHODS[f"powersgd:{rank}"], shape, 4, numel, 1):
        sent = sent + states[0]["result"].astype(np.float64)
        total = total + np.sum(grads, axis=0)
        assert_equal_bits(states)
    left = np.sum([state["lost"] for state in states], axis=0)
    # float32 products of 14 x 15 matrices whose elements stay below 100
    np.testing.assert_allclose(sent + left, total, atol=1e-2)


@given(numel=st.integers(1, 400), rank=st.integers(1, 4), seed=st.integers(0, 9))
def test_a_matrix_of_that_rank_comes_through_at_once(numel, rank, seed):
    (part,) = parts_of(spec(numel), rank)
    rows, cols, kept = part.rows, part.cols, part.rank
    rng = np.random.default_rng(seed)
    one = (rng.standard_normal((rows, kept)) @ rng.standard_normal((kept, cols))).ravel()[:numel]
    if rows * cols != numel:
        one[:] = np.resize([1.0], numel) * (numel == 1)  # zeros that fill up would add a rank
    grads = [(one * (r + 1)).astype(np.float32) for r in range(3)]
    states, _ = run(METHODS[f"powersgd:{rank}"], grads, (1, 3))
    total = np.sum(grads, axis=0)
    # Products of up to 20 columns; random starts are near to dependent at times.
    size = np.abs(total).max(initial=0)
    np.testing.assert_allclose(states[0]["result"], total, atol=5e-3 * size + 1e-6)


MIXED = {
    "conv": Tensor(name="conv", shape=(6, 4, 3)),
    "bias": Tensor(name="bias", shape=(6,)),
    "scale": Tensor(name="scale", shape=(9, 1)),
    "table": Tensor(name="table", shape=(40, 12)),
}


@given(cut=st.integers(1, 40), rank=st.integers(1, 2), seed=st.integers(0, 9))
def test_each_tensor_of_a_bucket_is_a_matrix_and_vectors_are_exact(cut, rank, seed):
    rng, runs = np.random.default_rng(seed), []
    for tensor in MIXED.values():
        rows, cols = tensor.shape[0], tensor.numel // tensor.shape[0]
        factors = rng.standard_normal((rows, rank)), rng.standard_normal((rank, cols))
        runs.append((factors[0] @ factors[1]).ravel())
    runs[-1] = runs[-1][: 12 * cut]  # of the last tensor a bucket may have some rows
    pieces = tuple(Piece(name, 0, len(run)) for name, run in zip(MIXED, runs, strict=True))
    mixed, whole = BucketSpec.of(pieces, MIXED), np.concatenate(runs)
    grads = [(whole * (r + 1)).astype(np.float32) for r in range(3)]
    results = []
    for name in (f"powersgd:{rank}", "ring+dense"):
        states = fresh_states([grad.copy() for grad in grads], 1, "b")
        run_method(find_method(name), mixed, group(1, 3), states)
        assert_equal_bits(states)
        results.append(states[0]["result"])
    found, dense = results
    np.testing.assert_allclose(found, dense, atol=5e-3 * np.abs(dense).max())
    np.testing.assert_allclose(found[72:87], dense[72:87], rtol=1e-6)


def test_a_bucket_of_vectors_is_summed_at_once():
    method, pieces = METHODS["powersgd:1"], (Piece("bias", 0, 6), Piece("scale", 0, 9))
    vectors = BucketSpec.of(pieces, MIXED)
    assert len(method.phases(vectors, group(1, 3))) == 1
    states = fresh_states([np.arange(r, r + 15, dtype=np.float32) for r in range(3)], 1, "b")
    for state in states:
        state["lost"] = np.full(15, 2, np.float32)  # of a method that the plan had before
    total = np.sum([state["gradient"] for state in states], axis=0) + 6
    run_method(method, vectors, group(1, 3), states)
    for state in states:
        np.testing.assert_array_equal(state["result"], total)
        assert not state["lost"].any()


def test_the_bytes_are_those_of_narrow_matrices():
    pieces = tuple(Piece(name, 0, tensor.numel) for name, tensor in MIXED.items())
    left, right = METHODS["powersgd:2"].phases(BucketSpec.of(pieces, MIXED), group(1, 2))
    assert left.payload.spec.numel == 2 * (6 + 40) + 15  # of the vectors
    assert right.payload.spec.numel == 2 * (12 + 12)


@pytest.mark.parametrize("rows", [0, 1, 3, 500])  # of each matrix; 0: vectors
def test_the_search_prices_a_bucket_by_its_matrices(rows):
    net = graph([1500, 30_000, 6000, 90_000], rows=rows)
    problem = Problem(Request(net=net, machine=machine(4, 2), lossy=("powersgd:2",)))
    prices, segments = problem.prices, Segments(problem, problem.units)
    number = prices.add(METHODS["powersgd:2"])
    offered = segments.of_matrices(number)
    for i, (start, last) in enumerate(zip(segments.start, segments.last, strict=True)):
        made = segments.bucket(start, last + 1)
        (seconds,) = np.moveaxis(prices.rows([made], [number], 0.0).seconds, 2, 0)
        exact = prices.exact(spec_of(made, net), number)
        assert offered[:, :, i].sum() == pytest.approx(seconds.sum(), rel=1e-3)
        assert seconds.sum() == pytest.approx(exact.sum(), rel=2e-2)  # by curves


def test_a_zero_gradient_does_not_end_the_sending():
    method, states = METHODS["powersgd:2"], fresh_states([np.zeros(90, np.float32)] * 2, 1, "b")
    for state in states:
        state["gradient"] = np.zeros(90, np.float32)
    run_method(method, spec(90), group(1, 2), states)
    for state, gradient in zip(states, rounded(2, 90), strict=True):
        state["gradient"][:] = gradient
        state["step"] = 1
    run_method(method, spec(90), group(1, 2), states)
    assert np.count_nonzero(states[0]["result"]) > 0


def test_a_broken_gradient_is_seen_by_all_and_forgotten():
    method = METHODS["powersgd:2"]
    for step, (_, states) in enumerate(steps(method, (1, 3), 2, 90, 1)):
        if step == 0:
            kept = [state["lost"].copy() for state in states]
            states[1]["gradient"][5] = np.inf
            run_method(method, spec(90), group(1, 3), states)
            assert all(np.isnan(state["result"]).all() for state in states)
            for state, before in zip(states, kept, strict=True):
                np.testing.assert_array_equal(bits(state["lost"]), bits(before))
    assert all(np.isfinite(state["result"]).all() for state in states)


@given(rows=st.integers(1, 30), rank=st.integers(1, 4), seed=st.integers(0, 9))
def test_columns_are_orthonormal_or_zero(rows, rank, seed):
    matrix = np.random.default_rng(seed).standard_normal((rows, rank)).astype(np.float32)
    matrix[:, -1] = matrix[:, 0]
    found = orthonormal(matrix)
    gram = found.T @ found
    np.testing.assert_allclose(gram, np.diag(np.round(np.diag(gram))), atol=1e-5)
    if rank > 1:
        assert not found[:, -1].any()


def test_the_rank_is_read_strictly():
    assert find_method("powersgd").name == "powersgd:2"
    assert find_method("powersgd:4").name == "powersgd:4"
    with pytest.raises(
        CommschedError, match="method 'powersgd:5': the rank must be a whole number"
    ):
        find_method("powersgd:5")


def test_one_large_number_breaks_one_step_not_all_that_follow():
    method, numel, broken = find_method("powersgd:1"), 300, []
    bucket = BucketSpec(((Sparsity(), numel, 0, numel),), False, (30,))
    states = fresh_states([np.zeros(numel, np.float32)], 0, "b0")
    for step in range(12):
        gradient = np.random.default_rng(step).standard_normal(numel).astype(np.float32)
        gradient[0] = 1e37 if step == 3 else gradient[0]
        states[0]["gradient"][:], states[0]["step"] = gradient, step
        run_method(method, bucket, group(1, 1), states)
        if not np.isfinite(states[0]["result"]).all():
            broken.append(step)
    assert broken == [4]
