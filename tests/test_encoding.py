"""Which threads code buckets: their own, or the one that communicates."""

from dataclasses import replace

import numpy as np
import pytest

from commsched.cli.reasons import notes
from commsched.machine.fabric import HeldOut
from commsched.machine.model import CodecRate
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.planner.search.encoding import elsewhere, encoded
from commsched.planner.search.timing import iteration
from commsched.program.model import CODINGS, Kind
from commsched.program.registry import STRATEGIES
from commsched.simulate.engine import simulate
from commsched.units import significant
from tests.support.small_plans import graph, machine, plan

METHODS = ["ring+fp16", "zen", "native+dense", "dsar"]
COMMUNICATION = {"encode": "communication"}
ALL = {"together": 2**30}
PLACES = {"apart": {}, "communication": COMMUNICATION, "together": ALL}


def slow(handover: float, encode: float = 0.0):
    """Ranks that share cores, where threads hear late of each other, or coding takes long."""
    rate = CodecRate(encode=encode, add=0.0, decode=0.0, source="test")
    on = machine(1, 4)
    return replace(on, handover=handover, device=replace(on.device, codecs={"fp16": rate}))


def both(methods, on, sizes=(300_000,) * 4, params=COMMUNICATION):
    apart = plan(graph(list(sizes), seconds=1e-4), on, methods)
    return apart, replace(apart, params={**apart.params, **params})


@pytest.mark.parametrize(
    ("params", "moved"),
    [
        (COMMUNICATION, {Kind.ENCODE}),
        (ALL, {Kind.ENCODE, Kind.DECODE}),
        (COMMUNICATION | ALL, {Kind.ENCODE, Kind.DECODE}),
    ],
)
def test_what_is_done_is_the_same_and_only_its_stream_is_another(params, moved):
    plans = both(METHODS, machine(1, 4), params=params)
    ops = [STRATEGIES["sync"].lower(each, 1, {}).roles[0].ops for each in plans]
    assert [op.name for op in ops[0]] == [op.name for op in ops[1]]
    for one, other in zip(*ops, strict=True):
        there = "inside" if one.kind in moved else one.stream
        assert other == replace(one, stream=there)


def test_only_buckets_of_so_many_bytes_are_coded_by_the_thread_that_communicates():
    sizes = (1000, 1001, 5000)
    _, made = both(["ring+dense"] * 3, machine(1, 4), sizes, {"together": 4004})
    ops = STRATEGIES["sync"].lower(made, 0, {}).roles[0].ops
    coded = {(op.launch, op.kind): op.stream for op in ops if op.kind in CODINGS}
    numel = [made.spec(launch).numel for launch in made.launches]
    assert sorted(numel) == sorted(sizes)
    for (launch, kind), stream in coded.items():
        assert stream == ("inside" if numel[launch] <= 1001 else kind)


def test_an_exchange_begins_as_soon_as_its_own_thread_has_encoded():
    _, made = both(METHODS, slow(1e-3))
    found = {(p.step, p.op.name): p for p in simulate(made, 4).placed}
    for (step, name), placed in found.items():
        if placed.op.kind is Kind.EXCHANGE:
            before = found[step, name.replace("/exchange", "/encode")]
            np.testing.assert_array_equal(placed.start, before.end)


@pytest.mark.parametrize(
    ("handover", "encode", "wins"),
    [(3e-3, 0.0, "together"), (0.0, 2e-9, "apart")],
)
def test_the_planner_takes_the_place_with_the_shorter_iteration(handover, encode, wins):
    on = slow(handover, encode)
    apart = both(["ring+fp16"], on)[0]
    seconds = {
        name: iteration(replace(apart, params={**apart.params, **params}))
        for name, params in PLACES.items()
    }
    assert min(seconds, key=seconds.get) == wins
    request = Request(net=apart.net, machine=on)
    found = encoded(replace(apart, iteration=seconds["apart"]), request)
    assert found.params.keys() & ALL.keys() == PLACES[wins].keys()
    kept = significant(seconds[wins] / 1e-3) * 1e-3  # as its file does, in ms
    assert found.iteration == kept
    here, there, more = elsewhere(found)
    assert (here, more) == (wins, seconds[there] - seconds[here])
    assert f": {more * 1e3:+.3f} ms" in notes(found)[-1] + notes(found)[-2]


def test_what_the_user_asks_for_stays_and_the_default_is_not_written_down():
    on = slow(3e-3)
    net = graph([300_000] * 4, seconds=1e-4)
    ours = make_plan(Request(net=net, machine=on))
    assert ours.params["together"] >= 1_200_000
    assert "encode" not in ours.params
    asked = make_plan(Request(net=net, machine=on, params={"encode": "apart"}))
    assert asked.params["encode"] == "apart"
    assert asked.iteration > ours.iteration
    assert "encode" not in make_plan(Request(net=net, machine=machine(1, 4))).params


def test_what_errors_may_cost_is_no_reason_to_encode_elsewhere():
    """A saving below the median held-out error of what takes longer than the compute."""
    sure, unsure = (
        replace(slow(3e-3), held_out=(HeldOut(name="ring", predicted=1 + e, measured=1.0),))
        for e in (0.01, 0.9)
    )
    places = []
    for on in (sure, unsure):
        made, _ = both(["ring+fp16"], on)
        request = Request(net=made.net, machine=on)
        found = encoded(replace(made, iteration=iteration(made)), request)
        places.append("together" in found.params)
    assert places == [True, False]
