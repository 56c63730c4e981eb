"""The error budget of a plan: measured errors, tensors that stay dense, wishes beyond it."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsched.errors import CommschedError
from commsched.exchange.error import SMALL, after, before, error, is_small
from commsched.exchange.lockstep import fresh_states, run_method
from commsched.exchange.registry import find_method
from commsched.net.bucket import BucketSpec
from commsched.net.graph import Layer, Net, Tensor
from commsched.net.sparsity import Sparsity
from commsched.planner.make_plan import make_plan
from commsched.planner.only_methods import only
from commsched.planner.registry import PLANNERS
from commsched.planner.request import Request
from tests.support import sampling
from tests.support.small_plans import machine

LARGE = (256, 512)
CODECS = ("fp16", "fp8", "qsgd:4", "topk:0.01", "onebit")
KEEPING = ("all-gather+topk:0.1", "ok-topk:0.05", "powersgd:2", "all-gather+onebit")
SPARSE = Sparsity(law="uniform", density=0.01)


def net() -> Net:
    """Weights with their biases, the last of few non-zeros; exchanges that nothing hides."""
    layers = [
        Layer(
            name=f"l{i}",
            forward=1e-5,
            backward=2e-5,
            tensors=(
                Tensor(name=f"l{i}.weight", shape=LARGE, sparsity=law),
                Tensor(name=f"l{i}.bias", shape=(LARGE[1],)),
            ),
        )
        for i, law in enumerate([Sparsity(), Sparsity(), SPARSE])
    ]
    return Net(name="guarded", layers=tuple(layers), source="test")


def request(**changes: object) -> Request:
    fields = {"net": net(), "machine": machine(2, 2), "lossy": CODECS}
    return Request(**fields | changes)  # type: ignore[arg-type]


@pytest.mark.by_day(5)
@pytest.mark.parametrize(
    ("planner", "budget"), sampling.some([*product(sorted(PLANNERS), [0.0, 1e-3, 0.05, 1.0])], 16)
)
def test_every_planner_stays_inside_the_budget_and_leaves_small_tensors_dense(planner, budget):
    wanted = request(max_error=budget)
    if planner in ("all-coo", "all-fft"):  # that name codecs which are not allowed here
        wanted = request(max_error=budget, lossy=(*CODECS, "fft"))
    if planner == "greedy":  # which knows no budgets
        with pytest.raises(CommschedError, match="--max-error"):
            make_plan(wanted, planner)
        return
    made = make_plan(wanted, planner)
    tensors = wanted.net.tensors
    for launch in made.launches:
        method = find_method(launch.method)
        for piece in launch.pieces:
            tensor = tensors[piece.tensor]
            assert method.lossless or not is_small(tensor.shape)
            assert error(method, tensor.sparsity, tensor.numel) <= budget
    assert made.max_error == budget


def test_a_codec_of_few_tensors_hides_none_of_the_others():
    # Only the sparse tensor may have top-k, which beats fp8 at every size.
    few = Tensor(name="few", shape=(2048, 1024), sparsity=SPARSE)
    most = Tensor(name="most", shape=(2048, 1024))
    layers = tuple(
        Layer(name=t.name, forward=1e-5, backward=1e-5, tensors=(t,)) for t in (few, most)
    )
    own = {"net": Net(name="two", layers=layers, source="test"), "max_error": 0.05}
    narrow, wide = (make_plan(request(lossy=c, **own)) for c in (("fp8",), ("fp8", "topk:0.01")))
    assert wide.iteration <= narrow.iteration * 1.0005


@pytest.mark.by_day(0)
def test_our_planner_uses_what_the_budget_leaves():
    lossless, *lossy = (make_plan(request(max_error=e)).iteration for e in (0.0, 1e-3, 0.05))
    assert max(lossy) < lossless


def test_a_forced_method_beyond_the_budget_is_refused_with_the_nearest():
    force = {"l0.weight": "all-gather+topk:0.01"}
    with pytest.raises(
        CommschedError,
        match=r"--force l0.weight=.* error of 0\.9.* allows 0\.05; nearest: 'all-gather\+fp8:e4m3'",
    ):
        make_plan(request(max_error=0.05, force=force))
    # The same codec is inside where its tensor has no more non-zeros than it sends.
    made = make_plan(request(max_error=0.1, force={"l2.weight": "all-gather+topk:0.1"}))
    assert "all-gather+topk:0.1" in {launch.method for launch in made.launches}
    with pytest.raises(CommschedError, match="momentum of its own"):
        make_plan(request(max_error=2.0, force={"l0.weight": "all-gather+dgc:0.01"}))
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(CommschedError, match="--max-error must be a finite share"):
            make_plan(request(max_error=bad))


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("ring+fp16", 2**-13, 2**-10),  # half a unit of 11 bits, once per hop
        ("ring+dense", 0.0, 0.0),
        ("all-gather+topk:0.01", 0.9, 1.0),
        ("all-gather+randomk:0.01", 0.98, 1.0),  # sqrt(0.99) of the norm stays behind
    ],
)
def test_measured_errors_are_those_of_theory(name, low, high):
    assert low <= error(find_method(name), Sparsity(), 10**6) <= high


def test_the_error_does_not_depend_on_the_collective_of_a_pair():
    pair = (error(find_method(f"{c}+fp16"), Sparsity(), 10**6) for c in ("ring", "doubling"))
    assert len(set(pair)) == 1


@settings(deadline=None, max_examples=sampling.examples(20))
@given(
    seed=st.integers(0, 2**31),
    name=st.sampled_from(KEEPING),
)
def test_the_squares_of_what_is_left_are_those_of_what_was_not_delivered(seed, name):
    """One rank alone keeps all that is lost: it is the wanted sum without the delivered one."""
    method, numel = find_method(name), SMALL // 8
    rng, runs = np.random.default_rng(seed), [slice(0, 700), slice(700, numel)]
    on = machine(1, 1).everyone
    (state,) = fresh_states([np.zeros(numel, np.float32)])
    left = np.zeros(numel)
    for step in range(3):
        state["step"] = step
        state["gradient"][:] = rng.standard_normal(numel)
        wanted = state["gradient"] + left
        spec = BucketSpec.uniform(numel)
        squares, known = before(method, method.phases(spec, on)[0], state, runs)
        assert known is None
        assert np.allclose(squares, [np.sum(wanted[r] ** 2) for r in runs], rtol=1e-4)
        run_method(method, spec, on, [state])
        left = wanted - state["result"]
        expected = [np.sum(left[r] ** 2) for r in runs]
        assert np.allclose(after(state, runs), expected, rtol=1e-3, atol=1e-6)


def test_a_tensor_that_no_allowed_method_keeps_within_the_budget_is_named_at_once():
    request = only(Request(net=net(), machine=machine(2, 2), max_error=0.01), ["ring+fp16"])
    with pytest.raises(CommschedError, match=r"keeps tensor 'l0\.bias'.*--allow-small, or"):
        make_plan(request)
    assert make_plan(replace(request, small=True)).launches
