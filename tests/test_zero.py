"""ZeRO: bytes and memory are those of the papers, and the window of units is never exceeded."""

from dataclasses import replace

import numpy as np
import pytest

from commsched.cli.main import main
from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.exchange.lockstep import fresh_states, run_method
from commsched.exchange.registry import find_method
from commsched.exchange.sharded import GATHERS, LEVELS, SUMS, find_sharded, own_places, shard_of
from commsched.net.bucket import BucketSpec
from commsched.plan.model import Plan
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.program.model import Kind
from commsched.program.registry import STRATEGIES
from commsched.program.units import units
from commsched.simulate.engine import simulate
from tests.support.small_plans import graph, machine

BARE = replace(graph([1]), layers=(replace(graph([1]).layers[0], tensors=()),))
STRATEGY = ("zero1", "zero2", "zero3")
SIZES = [1200, 4800, 240, 2400, 3600, 1000]  # of layers


def made(name, on, sizes=SIZES, **params) -> Plan:
    request = Request(net=graph(sizes), machine=on, strategy=name, params=params, bucket=1.0)
    return make_plan(request)


def mixed(net):
    layers = [
        replace(x, tensors=tuple(replace(t, dtype="float16") for t in x.tensors))
        for x in net.layers
    ]
    return replace(net, layers=tuple(layers))


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (2, 4), (4, 2)], ids=str)
@pytest.mark.parametrize("node", [False, True])
def test_state_takes_the_bytes_of_the_paper(shape, node):
    """Rajbhandari et al., SC 2020, figure 1: 2 Psi, 2 Psi and K Psi with K = 12, in shards."""
    on, net = machine(*shape), mixed(graph([8000, 16000, 4000]))
    shards = shape[1] if node else on.size
    psi = float(net.numel)
    for level, (a, g) in enumerate(((1, 1), (1, shards), (shards, shards)), start=1):
        params = {"shard": "node" if node else "all", "optimizer": "adam"}
        plan = make_plan(Request(net=net, machine=on, strategy=f"zero{level}", params=params))
        found = STRATEGIES[plan.strategy].memory(plan)
        wanted = (2 * psi / a, 2 * psi / g, 12 * psi / shards)
        assert found[:3] == pytest.approx(wanted, rel=1e-12)


@pytest.mark.by_day(2)
@pytest.mark.parametrize("prefetch", [0, 1, 2, 3, 9])
def test_bytes_of_a_step_are_those_of_the_paper(prefetch):
    """2 Psi (N - 1) / N, and 3 Psi under zero3 but for units that stay from forward to backward."""
    on, numel = machine(2, 3), sum(SIZES)
    for name in STRATEGY:
        params = {"prefetch": prefetch} if name == "zero3" else {}
        plan = made(name, on, **params)
        stays = sum(SIZES[len(SIZES) - (prefetch + 1) // 2 :]) if prefetch else 0
        gathered = 3 * numel - stays if name == "zero3" else 2 * numel
        # Packets of several shards in one message have a table of lengths.
        tables = 8 * 2 * 2 * sum(x.method.startswith(f"shard:{LEVELS[1]}") for x in plan.launches)
        sent = simulate(plan, 3).totals.sent[0]
        assert sent == pytest.approx(4 * gathered * (on.size - 1) / on.size + tables, rel=1e-9)


@pytest.mark.by_day(2)
@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("buffers", [1, 2])
def test_no_more_units_are_gathered_or_wait_than_the_window_holds(prefetch, buffers):
    """By the simulated timeline: parameters live from their gather to the end of their unit."""
    plan = made("zero3", machine(2, 2, jitter=0.3), prefetch=prefetch, buffers=buffers)
    spans = {
        (p.step, p.op.name): (float(p.start[0]), float(p.end[0])) for p in simulate(plan, 3).placed
    }
    layers, names = plan.net.layers, [launch.name for launch in plan.launches]
    held, waits = [], []
    for step in range(3):
        for unit in units(plan):
            forward = spans[step, f"forward/{layers[unit.stop - 1].name}"][1]
            backward = spans[step, f"backward/{layers[unit.start].name}"][1]
            first = spans[step, f"{names[unit.gather]}/encode"][0]
            if unit.regather is None:
                held.append((first, backward))
            else:
                again = spans[step, f"{names[unit.regather]}/encode"][0]
                assert again >= forward
                held += [(first, forward), (again, backward)]
            begun = spans[step, f"backward/{layers[unit.stop - 1].name}"][0]
            waits.append((begun, spans[step, f"{names[unit.reduce]}/decode"][1]))
    for lives, most in ((held, prefetch + 1), (waits, buffers)):
        for begin, _ in lives:
            assert sum(a <= begin < b for a, b in lives) <= most


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 3), (3, 2)], ids=str)
@pytest.mark.parametrize("codec", ["dense", "bf16", "fp8", "quant:8", "qsgd:4"])
def test_shards_hold_the_sum_and_gather_to_equal_bits(shape, codec):
    on, numel = machine(*shape), 101  # uneven shards
    spec, rng = BucketSpec.uniform(numel), np.random.default_rng(3)
    values = [rng.standard_normal(numel).astype(np.float32) for _ in range(on.size)]
    exact = np.sum(values, axis=0, dtype=np.float64)
    for name in SUMS:
        if not CODECS[codec].addable and name != "reduce-scatter-direct":
            with pytest.raises(CommschedError, match="cannot add packets"):
                find_method(f"shard:{name}+{codec}")
            continue
        method = find_method(f"shard:{name}+{codec}")
        states = fresh_states([v.copy() for v in values])
        run_method(method, spec, on.everyone, states)
        covered = np.zeros(numel, np.int64)
        for rank, state in enumerate(states):
            own = method.shard(spec, on.everyone, rank)
            covered[own] += 1
            bound = 1e-6 if codec == "dense" else 0.5 if codec == "qsgd:4" else 0.15
            assert np.abs(state["result"] - exact[own]).max() <= bound * np.abs(exact).max()
        assert (covered == (shape[0] if name == "hierarchical" else 1)).all()
    for name in GATHERS:
        method = find_method(f"shard:{name}+{codec}")
        states = fresh_states([v.copy() for v in values])
        for rank, state in enumerate(states):
            own = method.shard(spec, on.everyone, rank)
            state["gradient"][: own.start] = state["gradient"][own.stop :] = np.nan
        run_method(method, spec, on.everyone, states)
        whole = [state["result"] for state in states]
        assert all(np.array_equal(each, whole[0]) for each in whole)
        owned = np.zeros(numel, np.float32)
        for rank, own_values in enumerate(values):
            own = method.shard(spec, on.everyone, rank)
            owned[own] = own_values[own]
        if codec == "dense":
            assert np.array_equal(whole[0], owned)
        assert np.abs(whole[0] - owned).max() <= (0.5 if codec == "qsgd:4" else 0.1) * 4


@pytest.mark.parametrize("node", ["all", "node"])
def test_launches_of_a_unit_have_the_same_shards(node):
    plan = made("zero3", machine(2, 3), [100, 7, 23], shard=node, prefetch=0)
    for unit in units(plan):
        for rank in range(6):
            places = [[*own_places(plan, i, rank)] for i in (unit.reduce, unit.gather)]
            assert places[0] == places[1]
            own = shard_of(plan, unit.regather, rank)
            assert own.stop - own.start == sum(here.stop - here.start for *_, here in places[0])


def test_on_demand_nothing_hides_a_gather_and_a_prefetch_does():
    def iteration(**params):
        plan = made("zero3", machine(2, 2), [40000] * 6, **params)
        return plan.iteration

    assert iteration(prefetch=1) < iteration(prefetch=0)
    assert iteration(prefetch=2) <= iteration(prefetch=1) * (1 + 1e-9)


@pytest.mark.parametrize(("name", "codec"), [("zero1", "fp16"), ("zero3", "fp16")])
def test_halves_are_gathered_as_halves(name, codec):
    request = Request(net=mixed(graph(SIZES)), machine=machine(1, 2), strategy=name)
    for launch in make_plan(request).launches:
        assert launch.method.endswith(f"+{codec}" if launch.purpose else "+dense")


def test_between_nodes_of_many_ranks_shards_lie_lane_by_lane():
    """K ranks of a node then send 1 / K of the bytes between nodes."""
    plan = made("zero3", machine(2, 4), [40000] * 4)
    assert {find_sharded(launch.method).collective for launch in plan.launches} == {*LEVELS}
    assert "levels" not in made("zero3", machine(1, 4), [40000] * 4).launches[0].method


def test_shards_in_a_node_keep_gathers_off_the_network():
    plan = made("zero3", machine(2, 3), shard="node", prefetch=0)
    for placed in simulate(plan, 2).placed:
        if placed.op.kind is Kind.EXCHANGE:
            purpose = plan.launches[placed.op.launch].purpose
            assert (placed.op.stream == "inside") == (purpose != "")


@pytest.mark.parametrize(
    ("name", "request_", "said"),
    [
        ("zero1", {"params": {"prefetch": 2}}, "has no parameter 'prefetch'"),
        ("zero3", {"params": {"prefetch": -1}}, "prefetch cannot be -1; allowed: 0 to"),
        ("zero3", {"params": {"gather": "topk:0.1"}}, "allowed: auto, dense, bf16"),
        ("zero2", {"force": {"l0.weight": "ring+dense"}}, "--force is for sums that every rank"),
        ("zero2", {"without": frozenset(["ring+dense"])}, "--method is for sums that every rank"),
        (
            "zero3",
            {"memory": 1e4},
            "a memory limit of 10 kB per rank cannot hold: strategy 'zero3'",
        ),
        ("zero3", {"net": BARE}, "has no tensors for strategy 'zero3' to shard"),
    ],
)
def test_what_cannot_be_sharded_is_refused(name, request_, said):
    wanted = {"net": graph(SIZES), "machine": machine(2, 2), "strategy": name, **request_}
    with pytest.raises(CommschedError, match=said):
        make_plan(Request(**wanted))


def test_nodes_of_different_sizes_have_no_shards_of_their_own():
    on = replace(machine(2, 2), node_of_rank=(0, 0, 1))
    with pytest.raises(CommschedError, match="nodes have different numbers of ranks"):
        make_plan(Request(net=graph(SIZES), machine=on, strategy="zero3", params={"shard": "node"}))
    assert make_plan(Request(net=graph(SIZES), machine=on, strategy="zero3")).launches


@pytest.mark.by_day(0)
def test_a_memory_limit_gives_smaller_units():
    net, on = graph([400] * 40, seconds=1e-6), machine(2, 2)
    free = make_plan(Request(net=net, machine=on, strategy="zero3"))
    limit = STRATEGIES["zero3"].memory(free).total - 1
    tight = make_plan(Request(net=net, machine=on, strategy="zero3", memory=limit))
    assert STRATEGIES["zero3"].memory(tight).total <= limit
    assert len(units(tight)) > len(units(free))


def _launches(change):
    plan = made("zero3", machine(1, 4), prefetch=0)
    return replace(plan, launches=tuple(change(plan.launches)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda all_: [replace(all_[0], method="ring+dense"), *all_[1:]], "allowed: shard:reduce"),
        (
            lambda all_: [*all_[:-1], replace(all_[-1], method=f"shard:{GATHERS[2]}+dense")],
            "shards in different orders",
        ),
        (lambda all_: [x for x in all_ if x.purpose != "gather"], "no launch has purpose 'gather'"),
        (lambda all_: [x for x in all_ if x.name != "p0"], "has no launch of purpose 'gather'"),
        (lambda all_: [x for x in all_ if x.name != "g0"], "gathers other pieces than"),
        (
            lambda all_: [replace(x, every=2) for x in all_],
            "exchanges gradients among 'all' every 2",
        ),
    ],
)
def test_plans_that_shard_nothing_are_refused(change, said):
    plan = _launches(change)
    with pytest.raises(CommschedError, match=said):
        STRATEGIES["zero3"].lower(plan, 0, {})


@pytest.mark.parametrize(
    ("words", "status"), [("zero1", 0), ("zero3", 0), ("zero1 --param gather=quant:8", 2)]
)
def test_parameters_that_travel_in_their_own_type_lose_nothing(words, status, tmp_path, capsys):
    path = str(tmp_path / "plan.json")
    command = ["plan", "gpt3-1.3b", "--scale", "0.001", "--machine", "h100-8x400", "--nodes", "2"]
    command += ["--lanes", "2", "-o", path, "--lossless", "--strategy", *words.split()]
    assert main(command) == status
    out, err = capsys.readouterr()
    assert "cost in learning" not in out
    assert ("which loses something" in err) == (status == 2)
