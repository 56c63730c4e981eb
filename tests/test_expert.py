"""Expert parallelism: bytes by capacity and load, the busiest rank, memory, refusals."""

from dataclasses import replace

import numpy as np
import pytest

from commsched.errors import CommschedError
from commsched.exchange.experts import find_to_experts
from commsched.exchange.lockstep import fresh_states, run_method
from commsched.interchange.tasks import TaskKind, tasks
from commsched.net import file as net_file
from commsched.net.expert_part import expert_part
from commsched.net.experts import Experts
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.program.model import by_name
from commsched.program.registry import STRATEGIES
from commsched.simulate.engine import simulate
from commsched.simulate.report import report
from tests.support.small_plans import graph, machine, mixture

SIZES = [3000, 24000, 200, 24000]


def made(on=None, net=None, sizes=SIZES, **params):
    net = net or mixture(graph(sizes))
    return make_plan(
        Request(net=net, machine=on or machine(1, 4), strategy="expert", params=params)
    )


def test_a_rank_sends_the_bytes_of_the_formula():
    """4 (E - 1) n (t h B + 4) in each layer; t = 60 tokens / 12 experts, h = 7, n = 12 / E."""
    for on, width in ((machine(1, 4), 4), (machine(2, 4), 2)):
        plan = made(on, expert=width)
        step = [s for s in simulate(plan, 3).timeline() if s.step == 1]
        n = 12 // width
        for rank in range(on.size):
            for layer in ("l1", "l3"):
                sent = sum(s.nbytes for s in step if s.rank == rank and f"{layer}/" in s.name)
                assert sent == 4 * (width - 1) * n * (5 * 7 * 4 + 4)


def test_experts_take_their_share_up_to_their_capacity():
    zipf = Experts(count=4, tokens=100, width=3, zipf=1.0, capacity=1.25)
    assert zipf.slots == 32  # ceil(1.25 x 100 / 4)
    assert zipf.taken.tolist() == [32, 24, 16, 12]  # of 48, 24, 16 and 12
    assert zipf.dropped == 16
    whole = replace(zipf, capacity=4.0)
    assert (whole.taken.sum(), whole.dropped) == (100, 0)
    grouped = replace(zipf, groups=10, top=2)
    assert grouped.slots == 10 * 7  # ceil(1.25 x 2 x 10 / 4) in each group
    measured = replace(zipf, load=(0.3, 0.1, 0.2, 0.3))
    assert measured.taken.tolist() == [30, 10, 20, 30]
    assert measured.dropped == 10


def test_the_busiest_rank_sets_the_time():
    """Of 4 ranks the first has the hottest 3 experts of 12, and computes for all their tokens."""
    even, hot = (made(expert=4, zipf=z, capacity=12.0) for z in (0.0, 1.0))
    experts = hot.net.experts_of["l1"]
    work = experts.work_of(4)
    assert work.mean() == 1.0
    assert work[0] == pytest.approx(4 * sum(1 / k for k in (1, 2, 3)) / 3.1032, rel=0.02)
    seconds = [simulate(plan, 2).end for plan in (even, hot)]
    busier = 2 * (work[0] - 1) * (1e-3 + 2e-3) * 2  # 2 layers, 2 steps
    assert seconds[1] - seconds[0] == pytest.approx(busier, rel=0.05)
    program = STRATEGIES["expert"].lower(hot, 0, {})
    own = [by_name(program.role_of(r).ops)["forward/l1/experts"].seconds for r in range(4)]
    assert own == pytest.approx((1e-3 * work).tolist(), rel=1e-9)
    assert report(simulate(hot, 2))["experts"]["busiest_work"] == pytest.approx(work[0])


def test_capacity_bounds_what_a_hot_expert_takes_and_counts_what_is_dropped():
    plans = [made(expert=4, zipf=1.0, capacity=c) for c in (1.0, 12.0)]
    drops = [report(simulate(plan, 2))["experts"]["dropped_share"] for plan in plans]
    assert drops[1] == 0.0
    assert drops[0] == plans[0].net.experts_of["l1"].dropped / 60 > 0.2
    assert simulate(plans[0], 2).end < simulate(plans[1], 2).end


def test_ranks_hold_their_experts_and_sum_them_with_their_replicas_alone():
    plan = made(machine(2, 4), expert=4)
    assert plan.net.tensors["l1.weight"].shape == (3, 2000)
    of_experts = {x.group for x in plan.launches if x.name.startswith("e")}
    assert of_experts == {(0, 4, 1, 5, 2, 6, 3, 7)}
    assert all(x.split == 4 for x in plan.launches if x.name.startswith("e"))
    whole, shared = (
        STRATEGIES["expert"].memory(made(machine(2, 4), expert=k, optimizer="adam")) for k in (1, 4)
    )
    assert whole.parameters - shared.parameters == 4 * 2 * 24000 * 3 / 4
    assert whole.optimizer - shared.optimizer == 8 * 2 * 24000 * 3 / 4


def test_the_published_net_has_the_published_parameters():
    """52 billion; a rank of 128 holds 12 experts and what is not one."""
    net = net_file.load("deepspeed-moe-52b")
    assert net.numel == pytest.approx(52e9, rel=0.01)
    h, blocks = 2048, 12
    expert = 8 * h * h + 5 * h
    assert net.numel - expert_part(net, 128).numel == blocks * 127 * expert


@pytest.mark.by_day(6)
@pytest.mark.parametrize("codec", ["dense", "bf16", "quant:8"])
@pytest.mark.parametrize("collective", ["all-to-all", "all-to-all-rails"])
@pytest.mark.parametrize("shape", [(1, 3), (2, 2)])
def test_tokens_arrive_at_their_experts_and_come_back(shape, collective, codec):
    """Packets of other sizes than expected: the load of a step is never the expected one."""
    on = machine(*shape)
    plan = made(on, expert=on.size)
    method, everyone = find_to_experts(f"experts:{collective}+{codec}"), on.everyone
    size, n = on.size, 12 // on.size
    launch = next(x for x in plan.launches if x.purpose == "dispatch")
    spec = plan.spec(launch)
    slots, row = spec.slots.slots, spec.slots.row
    rng = np.random.default_rng(1)
    tables = rng.standard_normal((size, size, n, row)).astype(np.float32)
    counts = rng.integers(0, slots + 1, (size, size, n))
    tables[..., 0] = counts
    states = fresh_states([table.reshape(-1).copy() for table in tables])
    run_method(method, spec, everyone, states)
    found = np.array([state["result"].reshape(size, n, row) for state in states])
    np.testing.assert_array_equal(found[..., 0], counts.swapaxes(0, 1))
    there = 1 + np.arange(slots * 7)[None, None, None] // 7 < counts[..., None] + 1
    sent = np.where(there, tables[..., 1:], 0.0).swapaxes(0, 1)
    came = np.where(there.swapaxes(0, 1), found[..., 1:], 0.0)
    bound = {"dense": 0.0, "bf16": 2.0**-8 * 4, "quant:8": 2 * 4 / 127}[codec]
    assert np.abs(came - sent).max() <= bound


def test_an_export_sends_what_is_simulated():
    plan = made(machine(2, 4), expert=4, zipf=0.5)
    step = [s for s in simulate(plan, 1).timeline() if s.step == 0]
    for rank, own in enumerate(tasks(plan, 1)):
        sent = sum(each.nbytes for each in own if each.kind is TaskKind.SEND)
        assert sent == sum(s.nbytes for s in step if s.rank == rank)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"expert": 5}, "4 ranks do not divide into teams of 5; nearest: expert=4"),
        ({"expert": 3}, "4 ranks do not divide into teams of 3; nearest: expert=2"),
        ({"send": "topk:0.1"}, "send cannot be 'topk:0.1'"),
    ],
)
def test_degrees_that_do_not_divide_are_refused(params, said):
    with pytest.raises(CommschedError, match=said):
        made(**params)


def test_nets_that_cannot_be_shared_are_refused():
    with pytest.raises(CommschedError, match="cannot be shared by 8 ranks; nearest: expert=4"):
        made(machine(1, 8), expert=8)
    with pytest.raises(CommschedError, match="has no layers of experts; nearest: --strategy sync"):
        made(net=graph(SIZES))
    net = mixture(graph(SIZES))
    other = replace(net.layers[1], experts=Experts(count=8, tokens=60, width=7))
    wrong = replace(net, layers=(net.layers[0], other, *net.layers[2:]))
    with pytest.raises(CommschedError, match="whose axis 0 are its 8 experts, got axes of 12"):
        made(net=wrong)
    with pytest.raises(CommschedError, match="drops numbers of tokens"):
        find_to_experts("experts:all-to-all+topk:0.1")
    with pytest.raises(CommschedError, match="load must be 4 shares"):
        Experts(count=4, tokens=8, width=1, load=(0.5, 0.6))


def test_a_launch_that_exchanges_among_others_is_refused():
    plan = made(machine(2, 4), expert=4)
    for index, launch in enumerate(plan.launches):
        other = replace(launch, group=tuple(reversed(range(8))), split=launch.split)
        launches = (*plan.launches[:index], other, *plan.launches[index + 1 :])
        with pytest.raises(CommschedError, match="must exchange among the ranks of its tensors"):
            STRATEGIES["expert"].lower(replace(plan, launches=launches), 0, {})
