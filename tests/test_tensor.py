"""Tensor parallelism and its product with pipelines and ZeRO: papers' formulas, sums, refusals."""

from dataclasses import replace

import numpy as np
import pytest

from commsched.errors import CommschedError
from commsched.net import file as net_file
from commsched.net.tensor_cut import cut_net
from commsched.planner.fixed_method import given
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.program.model import Kind, Op
from commsched.program.registry import STRATEGIES
from commsched.simulate.engine import simulate
from commsched.simulate.timetable import EVERY, PlacedTurn, Teams
from commsched.simulate.turns import Chain, TurnPart
from tests.support.small_plans import graph, machine, shared

SIZES = [4000, 8000, 2000, 6000]


def made(name="3d", on=None, sizes=SIZES, **params):
    net = shared(graph(sizes))
    return make_plan(Request(net=net, machine=on or machine(2, 4), strategy=name, params=params))


@pytest.mark.parametrize("ranks", [2, 8])
def test_activations_are_those_of_the_paper(ranks):
    """Korthikanti et al., 2022, equation 2: s b h l (10 + 24 / t + 5 a s / (h t))."""
    net = cut_net(net_file.load("gpt3-13b"), ranks)
    blocks, h, heads, s = 40, 5120, 40, 2048
    kept = sum(layer.activation for layer in net.layers if layer.name.startswith("h."))
    assert kept == s * h * blocks * (10 + 24 / ranks + 5 * heads * s / (h * ranks))


@pytest.mark.parametrize("ranks", [2, 8])
def test_activations_of_shared_tokens_are_those_of_the_paper(ranks):
    """Korthikanti et al., 2022, equation 4: s b h l (34 + 5 a s / h) / t; all other work, too."""
    whole = net_file.load("gpt3-13b")
    net = cut_net(whole, ranks, sequence=True)
    blocks, h, heads, s = 40, 5120, 40, 2048
    kept = sum(layer.activation for layer in net.layers if layer.name.startswith("h."))
    assert kept == s * h * blocks * (34 + 5 * heads * s / h) / ranks
    for key in ("forward_flops", "backward_bytes"):
        work = [sum(getattr(layer, key) for layer in each.layers) for each in (whole, net)]
        assert work[1] * ranks == pytest.approx(work[0])
    crossing = [layer.output or layer.activation for layer in net.layers if "proj" in layer.name]
    assert set(crossing) == {2 * s * h / ranks}


@pytest.mark.parametrize("zero", [0, 1])
def test_a_step_sends_the_bytes_of_the_formula(zero):
    """4 l m 2 (T - 1) / T activations, 2 (D - 1) / D of the gradients, and the messages."""
    plan = made(tensor=2, pipeline=2, zero=zero, microbatches=3)
    sent = simulate(plan, 3).timeline()
    step = [s for s in sent if s.step == 1 and s.rank == 0]
    sums = sum(s.nbytes for s in step if "/t0/" in s.name)
    assert sums == 2 * 2 * 3 * 2 * (1 / 2) * 4 * 700  # 2 layers, 2 directions, 3 microbatches
    others = sum(s.nbytes for s in step if "/b0/" in s.name)
    own = sum(4 * launch.numel for launch in plan.launches if launch.name == "s0/b0")
    assert others == 2 * (1 / 2) * own
    assert {s.nbytes for s in step if s.name.startswith("send/")} == {4 * 700}


@pytest.mark.parametrize("zero", [0, 1])
def test_shared_tokens_send_the_bytes_of_the_formula(zero):
    """5 l m 2 (T - 1) / T activations, 1 / T of each message, 2 (N - 1) / N of a sum over N."""
    plan = made(tensor=2, pipeline=2, zero=zero, microbatches=3, sequence=1)
    step = [s for s in simulate(plan, 3).timeline() if s.step == 1 and s.rank == 0]
    sums = sum(s.nbytes for s in step if s.name.startswith("s0/t0/"))
    assert sums == 2 * 3 * 5 * (1 / 2) * 4 * 700  # 2 pairs, half a block each; 3 microbatches
    assert {s.nbytes for s in step if s.name.startswith("send/")} == {4 * 700 / 2}
    parted, whole = (x for x in plan.launches if x.name in ("s0/b0", "s0/b1"))
    assert [plan.net.tensors[p.tensor].axis for p in (*parted.pieces, *whole.pieces)] == [0, -1]
    assert (parted.split, whole.split) == (2, 1)
    for launch, ranks in ((parted, 2), (whole, 4)):
        own = [s.nbytes for s in step if s.name.startswith(f"{launch.name}/")]
        if zero:
            assert sum(own) == 2 * (ranks - 1) / ranks * 4 * launch.numel
        assert plan.group(launch).size == ranks


def test_shared_tokens_keep_a_part_of_everything_and_of_the_optimizers_state():
    plan, other = (made(tensor=2, pipeline=1, zero=1, sequence=k, optimizer="adam") for k in (1, 0))
    memory, before = (STRATEGIES["3d"].memory(each) for each in (plan, other))
    parted = sum(t.numel for t in plan.net.tensors.values() if t.axis >= 0)
    whole = sum(t.numel for t in plan.net.tensors.values() if t.axis < 0)
    assert memory.optimizer == 12 * (parted / 4 + whole / 8)
    assert memory.activations == sum(x.activation for x in shared(graph(SIZES)).layers) / 2
    assert memory.parameters == before.parameters


def test_one_rank_shares_no_tokens():
    plans = [made(tensor=1, pipeline=2, sequence=k) for k in (0, 1)]
    assert plans[0].launches == plans[1].launches
    assert plans[0].net == plans[1].net


def test_equal_stages_take_the_time_of_the_paper():
    """(m + P - 1)(f + b + sums) without jitter, then the update; messages are nearly free."""
    plan = made(on=machine(1, 4), sizes=[4] * 4, tensor=2, pipeline=2, microbatches=5)
    found = simulate(plan, 1)
    sums = {p.op.name: float((p.end - p.start)[0]) for p in found.placed if "/t0/" in p.op.name}
    turn = 2 * (1e-3 + 2e-3) / 2 + sum(
        s for name, s in sums.items() if "s0/" in name and "m0" in name
    )
    assert len(sums) == 2 * 5 * 2 * 2 * 3
    assert found.end == pytest.approx((5 + 2 - 1) * turn, rel=0.02)


def test_a_chain_ends_where_its_operations_end_one_after_the_other():
    rng = np.random.default_rng(1)
    op = Op(kind=Kind.COMPUTE, name="", stream="compute")
    parts = [TurnPart(op, 1.0 + i, 0.0, False, 0.0) for i in range(4)]
    sums = [TurnPart(op, 0.0, 0.3, True, 0.0) for _ in range(3)]
    chain = Chain(0, (parts[0], sums[0], parts[1], sums[1], parts[2], sums[2], parts[3]))
    start, factor, width = rng.random(6), 1 + rng.random(6), 3
    now, begun, last = start, [], []
    for part in chain.parts:
        begun.append(now)
        last.append(np.arange(6))
        if part.waits:
            slowest = now.reshape(-1, width).argmax(axis=1) + np.array([0, width])
            last[-1] = np.repeat(slowest, width)
            now = now[last[-1]]
        now = now + part.own * factor + part.common
    summed, opening, middle, common, closing = chain.times()
    assert summed
    teams = (start + opening * factor).reshape(-1, width).max(axis=1)
    slowest = factor.reshape(-1, width).max(axis=1)
    end = np.repeat(teams + common + middle * slowest, width) + closing * factor
    np.testing.assert_allclose(end, now, rtol=1e-12)
    turn = PlacedTurn(chain, start, end, Teams(np.arange(6), factor, width))
    every = turn.times(EVERY, EVERY)
    np.testing.assert_allclose(every.start, begun, rtol=1e-12)
    np.testing.assert_allclose(every.end, [*begun[1:], now], rtol=1e-12)
    np.testing.assert_array_equal(every.last, last)
    some, columns = slice(2, 5), np.array([4, 1])
    for whole, part in zip(every, turn.times(some, columns), strict=True):
        np.testing.assert_array_equal(part, whole[some][:, columns])


def test_a_team_waits_for_its_slowest_rank_and_no_other_team_does():
    plan = made(on=machine(1, 4, jitter=0.5), tensor=2, pipeline=1)
    placed = {p.op.name: p for p in simulate(plan, 1).placed if p.op.kind is Kind.EXCHANGE}
    ends = placed["s0/t0/forward/m0/0/exchange"].end
    assert ends[0] == ends[1] != ends[2] == ends[3]


def test_shards_divide_the_state_and_the_update():
    on = machine(1, 8)
    whole, zero = (made(on=on, tensor=2, pipeline=1, zero=z, optimizer="adam") for z in (0, 1))
    memory = [STRATEGIES["3d"].memory(plan) for plan in (whole, zero)]
    assert memory[0].optimizer / memory[1].optimizer == pytest.approx(8 / (8 + 4) * 4)
    applied = [
        sum(
            op.seconds
            for op in STRATEGIES["3d"].lower(plan, 0, {}).roles[0].ops
            if op.kind is Kind.APPLY
        )
        for plan in (whole, zero)
    ]
    assert applied[0] == pytest.approx(4 * applied[1])


def test_degrees_are_chosen_as_the_paper_says():
    """As many ranks of a node as can share the layers, then as few stages as fit."""
    plan = made("tensor", machine(2, 4))
    assert plan.params["tensor"] == 4
    assert made(on=machine(2, 5)).params["tensor"] == 1  # 12 parts, nodes of 5
    need = STRATEGIES["3d"].memory(made(tensor=2, pipeline=1)).total
    request = Request(net=shared(graph(SIZES)), machine=machine(2, 4), strategy="3d")
    tight = make_plan(replace(request, params={"tensor": 2}, memory=need - 1))
    assert tight.params["pipeline"] == 2


def test_tokens_that_do_not_divide_are_refused():
    net = shared(graph(SIZES), summed=701)
    request = Request(net=net, machine=machine(1, 2), strategy="tensor", params={"sequence": 1})
    with pytest.raises(
        CommschedError, match=r"701 elements.* do not divide among 2 ranks; nearest: sequence=0"
    ):
        make_plan(request)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"tensor": 5}, "12 parts of layer 'l0' cannot be shared by 5 ranks; nearest: tensor=4"),
        ({"tensor": 3}, "3 tensor-parallel ranks do not divide 8 ranks; nearest: tensor=2"),
        (
            {"tensor": 2, "pipeline": 3},
            "3 stages of 2 ranks each do not divide 8 ranks; nearest: 2",
        ),
        ({"tensor": 1, "pipeline": 8}, "8 stages cannot be made of the 4 layers"),
        ({"tensor": 2, "zero": 3}, "zero cannot be 3; allowed: 0, 1"),
    ],
    ids=str,
)
def test_degrees_that_do_not_divide_are_refused(params, said):
    with pytest.raises(CommschedError, match=said):
        made(**params)


def test_what_cannot_be_cut_or_does_not_fit_is_refused():
    whole = Request(net=graph(SIZES), machine=machine(1, 2), strategy="tensor")
    with pytest.raises(CommschedError, match=r"has no layers that 2 ranks can share.*tensor=1, or"):
        make_plan(replace(whole, params={"tensor": 2}))
    for name in ("tensor", "3d"):
        with pytest.raises(CommschedError, match=r"has no layers that 2 ranks can share.*tensor=1"):
            make_plan(replace(whole, strategy=name))
        make_plan(replace(whole, strategy=name, params={"tensor": 1}))
    large = replace(whole, net=shared(whole.net), strategy="3d", memory=1e3)
    with pytest.raises(CommschedError, match=r"a rank needs .* nearest: (zero=1|a limit of)"):
        make_plan(large)


SUMMED = "ring+dense"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: [] if x.name == "s0/t0/gather" else [x], "other gathers of tokens than seq"),
        (lambda x: [] if x.name == "s0/t0" else [x], "no launch that sums 700 activations"),
        (
            lambda x: [replace(x, method=SUMMED if x.name == "s0/t0" else x.method)],
            "which sequence=1 cannot use",
        ),
        (
            lambda x: [
                replace(x, method=x.method.replace("-gather", "-gather-levels"))
                if "t0" in x.name
                else x
            ],
            "which sequence=1 cannot use",
        ),
        (lambda x: [replace(x, split=2)], "in the teams of one stage"),
    ],
)
def test_plans_that_exchange_tokens_otherwise_are_refused(change, said):
    plan = made(tensor=2, pipeline=2, sequence=1)
    changed = tuple(made for launch in plan.launches for made in change(launch))
    with pytest.raises(CommschedError, match=said):
        STRATEGIES["3d"].lower(replace(plan, launches=changed), 0, {})


def test_a_part_of_a_net_keeps_the_way_in_which_it_was_cut():
    plan = made(tensor=2, pipeline=2, sequence=1)
    again = Request(net=plan.net, machine=plan.machine, strategy="3d", params=plan.params)
    assert make_plan(again).net == plan.net
    other = replace(again, params={**plan.params, "sequence": 0})
    with pytest.raises(CommschedError, match=r"made for sequence=1; nearest: sequence=1"):
        make_plan(other)
    with pytest.raises(CommschedError, match=r"2 ranks share the tokens .* but sequence is 0"):
        STRATEGIES["3d"].lower(replace(plan, params={**plan.params, "sequence": 0}), 0, {})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda all_: all_[1:], "stage 0 has no launch that sums 700 activations"),
        (lambda all_: [x for x in all_ if x.purpose != "gather"], "has other gathers than zero=1"),
        (lambda all_: [replace(x, lag=1) for x in all_], "must exchange in every step"),
        (lambda all_: [replace(x, split=1) for x in all_], "in the teams of one stage"),
        (lambda all_: [replace(x, method="ring+dense") for x in all_], "which zero=1 cannot use"),
    ],
)
def test_plans_that_do_other_things_are_refused(change, said):
    plan = made(tensor=2, pipeline=2, zero=1)
    with pytest.raises(CommschedError, match=said):
        STRATEGIES["3d"].lower(replace(plan, launches=tuple(change(plan.launches))), 0, {})


def test_a_fixed_method_sums_gradients_beside_the_shards_of_activations():
    net = shared(graph(SIZES))
    params = {"tensor": 2, "pipeline": 2, "zero": 0, "sequence": 1}
    request = Request(net=net, machine=machine(2, 4), strategy="3d", params=params)
    plan, own = given(request, "ring+fp16"), make_plan(request)
    routes = [
        [(x.name, x.method) for x in p.launches if x.payload == "activation"] for p in (plan, own)
    ]
    assert routes[0] == routes[1] != []
    assert {x.method for x in plan.launches if x.payload == "gradient"} == {"ring+fp16"}
    sharding = replace(request, params={**params, "zero": 1})
    with pytest.raises(CommschedError, match="zero=1 leaves shards of 's0/b0'"):
        given(sharding, "ring+fp16")
