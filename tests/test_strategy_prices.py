"""What strategies beyond `sync` may use, keep and update: a method, memory, a share of the work."""

from dataclasses import replace
from functools import partial

import pytest

from commsched.cost.price import price
from commsched.errors import CommschedError
from commsched.exchange.method import Choice, no_seconds, resolved
from commsched.exchange.registry import find_method
from commsched.machine import file as machine_file
from commsched.machine.model import resized
from commsched.machine.slowed_links import slower
from commsched.net.bucket import BucketSpec
from commsched.net.expert_part import expert_part
from commsched.net.tensor_cut import cut_net
from commsched.planner.crossover import WIDE, at_rate, outpaced
from commsched.planner.make_plan import make_plan
from commsched.planner.memory_advice import too_large
from commsched.planner.only_methods import only
from commsched.planner.request import Request
from commsched.program.model import Kind
from commsched.program.registry import STRATEGIES
from tests.support.small_plans import graph, machine, mixture, shared, strategy_plan

SIZES = [1200, 4800, 2400, 3600]
UPDATE = 20e-3  # s, measured


def measured(net):
    return replace(net, optimizer=UPDATE)


def updates(plan):
    """Seconds of the updates of the rank that updates most."""
    program = STRATEGIES[plan.strategy].lower(plan, 3, {})
    return max(
        sum(op.seconds for op in role.ops if op.kind is Kind.APPLY and op.stream == "compute")
        for role in program.roles
    )


@pytest.mark.parametrize(
    ("strategy", "method", "params"),
    [
        ("shadow", "ring+fp16", {}),
        ("daso", "ring+fp16", {}),
        ("samo", "ring+dense", {"stages": 2, "microbatches": 2}),
        ("tensor", "dsar", {"tensor": 2}),
    ],
)
def test_a_method_that_a_strategy_cannot_use_is_one_sentence(strategy, method, params):
    net = shared(graph([1200] * 4)) if strategy == "tensor" else graph(SIZES)
    request = Request(net=net, machine=machine(2, 2), strategy=strategy, params=params)
    with pytest.raises(CommschedError, match=rf"'{strategy}'.*nearest: --method ring\+"):
        make_plan(only(request, [method]))


@pytest.mark.parametrize("method", ["dsar", "mask"])
def test_teams_that_could_decide_differently_get_no_such_method(method):
    net = shared(graph([1200] * 4))
    net = replace(net, layers=tuple(x.with_density(0.01) for x in net.layers))
    request = Request(net=net, machine=machine(2, 2), strategy="tensor", params={"tensor": 2})
    plan = make_plan(request)
    assert any(launch.split > 1 for launch in plan.launches)
    STRATEGIES["tensor"].lower(plan, 0, {})
    launches = [
        replace(x, method=method) if x.split > 1 and x.payload == "gradient" else x
        for x in plan.launches
    ]
    with pytest.raises(CommschedError, match="teams could decide differently"):
        STRATEGIES["tensor"].lower(replace(plan, launches=tuple(launches)), 0, {})


@pytest.mark.parametrize("level", ["zero1", "zero2", "zero3"])
def test_a_rank_updates_its_share_in_its_share_of_the_measured_time(level):
    whole = updates(strategy_plan(measured(graph(SIZES)), machine(2, 2), "sync"))
    part = updates(strategy_plan(measured(graph(SIZES)), machine(2, 2), level))
    assert whole == pytest.approx(UPDATE)
    assert part == pytest.approx(UPDATE / 4)


def test_a_part_of_a_net_is_updated_in_its_share_of_the_measured_time():
    net = measured(shared(graph([1200] * 4)))
    cut = cut_net(net, 2)
    assert cut.optimizer == pytest.approx(UPDATE * cut.numel / net.numel)
    net = measured(mixture(graph([1200] * 4)))
    part = expert_part(net, 2, 2)
    assert part.numel < net.numel
    assert part.optimizer == pytest.approx(UPDATE * part.numel / net.numel)
    plan = strategy_plan(measured(graph(SIZES)), machine(2, 2), "samo", pruned=0.9)
    assert plan.net.optimizer == pytest.approx(UPDATE / 10, rel=0.01)


@pytest.mark.parametrize("strategy", ["gpipe", "1f1b", "local", "tensor", "daso", "sync"])
def test_memory_has_what_codecs_keep(strategy):
    """Feedback keeps a number for each element that a rank sums, beside packets."""
    net = shared(graph([1200] * 4)) if strategy == "tensor" else graph(SIZES)
    dense = strategy_plan(net, machine(2, 2), strategy)
    launches = [
        replace(x, method="all-gather+topk:0.01") if x.payload == "gradient" else x
        for x in dense.launches
    ]
    plan = replace(dense, launches=tuple(launches))
    found = STRATEGIES[strategy].memory(plan)
    assert STRATEGIES[strategy].memory(dense).residuals == 0
    sums = [plan.spec(x).numel for x in launches if x.payload == "gradient"]
    assert found.residuals >= 4.0 * min(sums)
    assert found.residuals % 4.0 == 0
    assert found.packets > 0


def test_what_fits_is_computed_for_the_whole_net_and_its_optimizer():
    """A part of the experts says nothing of a rank that has all; adam needs more than momentum."""
    small = machine(1, 4)
    small = replace(small, device=replace(small.device, memory=5e4))
    part = strategy_plan(mixture(graph([1200] * 4)), small, "expert")
    assert part.net.experts > 1
    assert "fits" not in " ".join(too_large(part)).replace("fits either", "")
    for optimizer, states in (("momentum", 1), ("adam", 2)):
        net = graph([2400] * 4)
        limit = 4.0 * 2400 * (3 + states) + 5000  # of one stage of four
        on = replace(small, device=replace(small.device, memory=limit))
        (line,) = too_large(strategy_plan(net, on, "sync", optimizer=optimizer))
        said = "optimizer=adam" in line
        assert "fits with" in line, line
        assert said == (optimizer == "adam"), line


class VotesForFree:
    """A method whose votes take no time."""

    def __init__(self, method):
        self._method = method

    def __getattr__(self, name):
        return getattr(self._method, name)

    def phases(self, spec, group):
        def then(choice, decision):
            return replace(choice.then(decision), vote_seconds=no_seconds)

        return tuple(
            replace(p, then=partial(then, p)) if isinstance(p, Choice) else p
            for p in self._method.phases(spec, group)
        )


@pytest.mark.parametrize("name", ["mask", "dsar"])
def test_a_price_has_the_work_of_a_vote(name):
    spec, on, method = BucketSpec.uniform(10**6, 0.01), machine(1, 4), find_method(name)
    phases = method.phases(method.seen(spec, on.everyone), on.everyone)
    votes = sum(resolved(p).vote_seconds(on.device) for p in phases if isinstance(p, Choice))
    whole, free = (price(m, spec, on, on.everyone).seconds for m in (method, VotesForFree(method)))
    assert votes > 0.0
    assert whole - free == pytest.approx(votes)


def test_a_codec_may_be_outpaced_at_the_slowest_and_the_fastest_rates():
    """Lossless lists send less than fp16; dense sums need no coding: fp16 pays in between."""
    spec, on = BucketSpec.uniform(10**7, 0.28), resized(machine_file.load("localhost"), 4, 1)
    found = outpaced(spec, on, "fp16")
    assert WIDE[3] < found.rate < WIDE[5]
    there = at_rate(on, found.rate)
    coded, exact = (
        price(find_method(name), spec, there, on.everyone, limit=0).seconds
        for name in (found.method, found.lossless)
    )
    assert coded == pytest.approx(exact, rel=0.01)


def test_a_link_whose_bytes_cost_nothing_is_not_slowed():
    on = machine(2, 2)
    on = replace(on, inside=replace(on.inside, per_byte=0.0))
    assert slower(on, 0.5).inside.per_byte == 0.0
