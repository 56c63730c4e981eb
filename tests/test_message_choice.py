"""The codec of messages that planners choose where a request allows losses and leaves it open."""

from dataclasses import replace

import pytest

from commsched.cli.main import main
from commsched.coding.registry import CODECS
from commsched.machine import file as machine_file
from commsched.net import file as net_file
from commsched.plan import file as plan_file
from commsched.planner.auto.learning import cost, lessons
from commsched.planner.families import plan_with_verdict
from commsched.planner.make_plan import make_plan
from commsched.planner.reasons.verdict import NOTHING
from commsched.planner.request import Request
from commsched.program.message_coding import NAMES
from tests.test_auto import chosen, machine, net

SLOW, FAST = 8e-9, 1e-13  # s/B
BIG = 1e6  # B of a message
EVERY = tuple(CODECS[name].name for name in NAMES)


def wanted(strategy="1f1b", per_byte=SLOW, **more):
    width = {"pipeline": 2, "tensor": 1} if strategy == "3d" else {"stages": 2}
    params = {**width, "microbatches": 2, **more.pop("params", {})}
    asked = {"net": net(1000, BIG), "machine": machine(per_byte), "strategy": strategy}
    return Request(**asked, params=params, **more)


@pytest.mark.by_day(2)
@pytest.mark.parametrize("strategy", ["gpipe", "1f1b", "3d", "samo", "local"])
def test_the_fastest_allowed_codec_is_chosen_and_no_other_is_faster(strategy):
    request = wanted(strategy, messages=EVERY)
    plan = make_plan(request)
    times = {
        name: make_plan(replace(request, params={**request.params, "messages": name})).iteration
        for name in ("dense", *NAMES)
    }
    assert plan.iteration == pytest.approx(min(times.values()), rel=1e-9)
    assert plan.iteration == times[plan.params["messages"]] < times["dense"]
    few = make_plan(replace(request, messages=("quant:8", "fp16")))
    assert few.params["messages"] == "quant:8"
    assert few.iteration == times["quant:8"]


@pytest.mark.parametrize("more", [{}, {"lossy": ("quant:8",)}, {"messages": ("onebit",)}])
def test_nothing_is_coded_that_is_not_allowed_for_messages(more):
    assert make_plan(wanted(**more)).params["messages"] == "dense"


def test_what_the_request_says_is_kept():
    for name in ("dense", "bf16"):
        request = wanted(messages=EVERY, params={"messages": name})
        assert make_plan(request).params["messages"] == name


def test_messages_that_nobody_waits_for_stay_as_they_are():
    """Coding takes time and links do not: a lossy codec must gain something."""
    request = wanted(per_byte=FAST, messages=EVERY)
    assert make_plan(request).params["messages"] == "dense"
    slow = replace(request.machine.device, bandwidth=1e8)  # B/s: coding takes longer than sending
    coding = replace(machine(), device=slow)
    net_of_seconds = request.net  # states its seconds, which do not follow the device
    plan = make_plan(replace(request, machine=coding, net=net_of_seconds))
    assert plan.params["messages"] == "dense"


def test_allow_means_messages_too_and_a_forced_method_does_not(tmp_path, capsys):
    net_file.write(tmp_path / "net.json", net(1000, BIG))
    machine_file.write(tmp_path / "machine.json", machine())
    words = ["plan", str(tmp_path / "net.json"), "--machine", str(tmp_path / "machine.json")]
    words += ["--strategy", "1f1b", "--param", "stages=2", "--param", "microbatches=2"]
    for more, name in (("--allow", "quant:8"), ("--method", "all-gather+quant:8")):
        value = name.partition("+")[2] or name
        path = tmp_path / f"{more}.json"
        assert main([*words, more, name, "-o", str(path)]) == 0
        found = plan_file.read(path).params["messages"]
        assert found == (value if more == "--allow" else "dense")
    assert "messages dense" in capsys.readouterr().out


@pytest.mark.by_day(0)
def test_auto_codes_messages_only_by_what_was_measured_and_loses_little():
    request = Request(net=net(1000, BIG), machine=machine(), messages=EVERY)
    choice, plain = (
        chosen(each, exhaustive=True) for each in (request, replace(request, messages=()))
    )
    assert len(choice.rows) == len(plain.rows)  # the codec is chosen inside a candidate
    lost = {x.params["messages"]: x.lost for x in lessons() if x.strategy == "1f1b"}
    assert set(lost) >= {"dense", *NAMES}
    rows = {row.candidate.words: row for row in plain.rows}
    coded = [row for row in choice.rows if row.told != row.candidate]
    assert {row.candidate.strategy for row in coded} == {"gpipe", "1f1b"}
    for row in coded:
        name = row.told.params["messages"]
        assert lost[name] <= 0.5
        assert row.learning.lost == lost[name]
        assert not row.refused
        assert row.time * (1 + NOTHING) < rows[row.candidate.words].time
        alone = replace(request, strategy=row.told.strategy, params=row.told.params)
        assert plan_with_verdict(alone, "ddp-25mb").plan.hash == row.plan.hash
    # One bit is the fastest, and loses more than may be lost.
    assert lost["quant:1"] > 0.5
    assert {row.told.params["messages"] for row in coded} != {"quant:1"}
    many = chosen(request, lost=100.0, exhaustive=True)
    names = {row.told.params.get("messages") for row in many.rows} - {None}
    assert names == {"quant:1"}


@pytest.mark.by_day(0)
def test_under_an_error_budget_auto_codes_no_message():
    request = Request(net=net(1000, BIG), machine=machine(), messages=EVERY, max_error=0.1)
    assert all(row.told == row.candidate for row in chosen(request).rows)


def test_the_cost_of_coded_messages_is_that_of_its_lesson():
    plan = make_plan(wanted("gpipe", params={"messages": "fp16"}))
    found = cost(plan)
    assert found.lost is not None
    assert "mlp:64:3" in str(found)
    also = make_plan(wanted("gpipe", params={"messages": "fp16"}, lossy=("fp16",)))
    coded = replace(also, launches=tuple(replace(x, method="ring+fp16") for x in also.launches))
    assert str(cost(coded)).startswith("not measured with messages fp16")
