"""The codec of messages that planners choose where a request allows losses and leaves it open."""

from dataclasses import replace

import pytest

from commsched.cli.main import main
from commsched.coding.registry import CODECS
from commsched.machine import file as machine_file
from commsched.net import file as net_file
from commsched.plan import file as plan_file
from commsched.planner.make_plan import make_plan
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


def test_under_an_error_budget_auto_codes_no_message():
    request = Request(net=net(1000, BIG), machine=machine(), messages=EVERY, max_error=0.1)
    assert all(row.told == row.candidate for row in chosen(request).rows)
