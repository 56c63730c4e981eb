"""The planners: every plan is legal and complete, and the choice is the cheapest."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from commsched.coding.registry import CODECS
from commsched.cost.price import method_seconds
from commsched.errors import CommschedError
from commsched.exchange.registry import find_method, legal_methods
from commsched.net.graph import Layer, Net, Tensor
from commsched.net.sparsity import Sparsity
from commsched.planner.launches import buckets
from commsched.planner.make_plan import make_plan
from commsched.planner.registry import PLANNERS
from commsched.planner.request import Request
from tests.support import sampling
from tests.support.small_plans import graph, machine

SIZES = st.lists(st.integers(1, 10**6), min_size=1, max_size=8)


def sparse(density: float, numel: int = 10**6) -> Net:
    """One embedding whose gradient is mostly zeros."""
    law = Sparsity(law="uniform", density=density)
    tensor = Tensor(name="embedding", shape=(numel,), sparsity=law)
    layer = Layer(name="embedding", forward=1e-4, backward=1e-4, tensors=(tensor,))
    return Net(name="sparse", layers=(layer,), source="test")


@given(sizes=SIZES, limit=st.floats(1, 1e7), first=st.one_of(st.none(), st.floats(1, 1e6)))
def test_buckets_hold_every_tensor_once_in_backward_order(sizes, limit, first):
    request = Request(net=graph(sizes), machine=machine())
    found = buckets(request, limit, first)
    names = [piece.tensor for pieces in found for piece in pieces]
    assert names == [f"l{i}.weight" for i in reversed(range(len(sizes)))]
    for pieces in found:
        assert len(pieces) == 1 or 4 * sum(p.stop for p in pieces) <= max(limit, first or 0)


def test_ddp_fills_a_bucket_of_1_mb_first_and_then_of_25_mb():
    made = make_plan(Request(net=graph([100_000] * 80), machine=machine()), "ddp-25mb")
    assert [len(launch.pieces) for launch in made.launches] == [2, 62, 16]  # tensors of 0.4 MB


@pytest.mark.by_day(3)
@pytest.mark.parametrize("planner", list(PLANNERS))
@given(sizes=SIZES, nodes=st.integers(1, 2), lanes=st.integers(1, 4))
@example(sizes=[1, 16, 16, 65, 365], nodes=1, lanes=1)  # without packing 0 s, but for rounding
@settings(max_examples=sampling.examples(10), deadline=None)
def test_every_planner_makes_complete_plans_with_reasons(planner, sizes, nodes, lanes):
    codec = planner.removeprefix("all-")
    lossy = (codec,) if codec != planner and not CODECS[codec].lossless else ()
    request = Request(net=graph(sizes), machine=machine(nodes, lanes), lossy=lossy)
    made = make_plan(request, planner)
    made.check()
    assert made.planner == planner
    for launch in made.launches:
        method = find_method(launch.method)
        assert method.lossless or lossy
        seconds = method_seconds(method, made.spec(launch), made.machine, made.group(launch))
        assert launch.reason is not None
        assert launch.reason.seconds == pytest.approx(seconds, rel=1e-9, abs=1e-15)
        if planner == "greedy":
            slower = launch.reason.runner_up_seconds >= launch.reason.seconds
            assert slower or not launch.reason.runner_up


@pytest.mark.by_day(0)
@settings(max_examples=sampling.examples(25))
@given(sizes=SIZES, shape=st.sampled_from([(2, 2), (3, 4)]), zeros=st.booleans())
def test_only_the_chosen_method_is_cheaper_than_the_runner_up(sizes, shape, zeros):
    net = sparse(0.02, sum(sizes)) if zeros else graph(sizes)
    request = Request(net=net, machine=machine(*shape), lossy=("fp16",), bucket=1e5)
    made = make_plan(request, "greedy")
    group = made.machine.everyone
    for launch in made.launches:
        spec, reason = made.spec(launch), launch.reason
        times = sorted(
            method_seconds(method, spec, made.machine, group)
            for method in legal_methods(group)
            if method.lossless or (method.codec or method).name == "fp16"
        )
        told = [reason.seconds, reason.runner_up_seconds]
        assert told == pytest.approx(times[:2], rel=1e-9)


def test_a_lossy_codec_is_used_only_where_it_is_allowed():
    net, on = graph([10**7]), machine(2, 1)
    (dense,) = make_plan(Request(net=net, machine=on, bucket=1e9)).launches
    (half,) = make_plan(Request(net=net, machine=on, bucket=1e9, lossy=("bf16",))).launches
    assert dense.method.endswith("+dense")
    assert half.method.endswith("+bf16")


@pytest.mark.parametrize(
    ("allowed", "chosen"),
    [("topk:0.0010", "+topk:0.001"), ("qsgd", "+qsgd:4"), ("powersgd:01", "powersgd:1")],
)
def test_what_is_allowed_may_have_parameters(allowed, chosen):
    net, on = graph([10**7], rows=2500), machine(2, 1)
    (launch,) = make_plan(Request(net=net, machine=on, bucket=1e9, lossy=(allowed,))).launches
    assert launch.method.endswith(chosen)


def test_sparse_gradients_travel_as_lists_and_dense_ones_do_not():
    on = machine(4, 1)
    for density, dense in ((0.001, False), (0.99, True)):
        (launch,) = make_plan(Request(net=sparse(density), machine=on)).launches
        assert launch.method.endswith("+dense") == dense


def test_forced_methods_are_kept_and_get_a_bucket_of_their_own():
    force = {"l1.weight": "tree+bf16"}
    made = make_plan(Request(net=graph([10, 20, 30]), machine=machine(), force=force))
    forced = [e for e in made.launches if e.method == "tree+bf16"]
    assert [[p.tensor for p in e.pieces] for e in forced] == [["l1.weight"]]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"force": {"nothing": "ring+dense"}}, "no tensor named 'nothing' in net 'chain'"),
        ({"force": {"l0.weight": "rign+dense"}}, "no collective named 'rign'"),
        ({"force": {"l0.weight": "ring"}}, "no method named 'ring'"),
        ({"force": {"l0.weight": "native+fp16"}}, "use codec 'dense' with it"),
        ({"lossy": ("fp17",)}, "no codec named 'fp17'"),
        ({"strategy": "snyc"}, "no strategy named 'snyc'"),
        ({"params": {"overlap": "never"}}, "overlap cannot be 'never'"),
        ({"params": {"speed": 1}}, "has no parameter 'speed'"),
    ],
)
def test_impossible_wishes_get_one_sentence(changes, sentence):
    with pytest.raises(CommschedError, match=sentence):
        make_plan(Request(net=graph([10]), machine=machine(), **changes))


def test_equal_requests_give_equal_plans():
    request = Request(net=graph([10**5, 10, 10**6]), machine=machine(2, 2))
    assert make_plan(request).hash == make_plan(request).hash
    assert set(CODECS) >= {"dense", "fp16", "bf16", "coo"}
