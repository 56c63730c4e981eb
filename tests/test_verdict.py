"""Whether to compress: best plans of families of methods, compared, and said in one sentence."""

import json
import re
import sys
from dataclasses import replace
from types import FrameType

import pytest

from commsched.cli.main import main
from commsched.exchange.registry import find_method
from commsched.machine import file as machine_file
from commsched.machine.fabric import HeldOut
from commsched.machine.model import resized
from commsched.net import file as net_file
from commsched.plan import file as plan_file
from commsched.plan.model import Alternative, Plan
from commsched.planner.families import families, plan_with_verdict
from commsched.planner.only_methods import only
from commsched.planner.reasons.verdict import NOTHING, conclusion, lines
from commsched.planner.request import Request
from commsched.planner.search.timing import iteration
from tests.support import sampling
from tests.support.small_plans import graph, machine, plan

CASES = (
    ("vgg16", "p3dn.24xlarge"),
    ("deepfm", "summit"),
    ("resnet50", "localhost"),
    ("nmt", "comet"),
    ("lstm", "p3.16xlarge"),
    ("alexnet", "a100-4xhdr200"),
)


def small(net: str, on: str, **changes: object) -> Request:
    """A shipped net on two nodes of a shipped machine, two ranks on each."""
    shape = resized(machine_file.load(on), 2, 2)
    return Request(net=net_file.load(net), machine=shape, **changes)  # type: ignore[arg-type]


def told(made: Plan) -> dict[str, float]:
    return {row.family: row.iteration for row in made.alternatives}


@pytest.mark.by_day(0)
@pytest.mark.parametrize(("net", "on"), sampling.some(CASES, 3))
def test_no_wider_family_has_a_slower_plan_and_what_is_advised_comes_true(net, on):
    asked = small(net, on)
    first, second, third = (
        plan_with_verdict(replace(asked, lossy=lossy)).plan
        for lossy in ((), ("fp16",), ("fp16", "topk:0.01"))
    )
    for made in (first, second, third):
        found = told(made)
        assert found["lossless"] <= found["dense"]
        assert made.iteration >= made.bound
        own = found.get("allowed", found["lossless"])
        assert made.iteration == own
        assert iteration(made) == pytest.approx(own, rel=1e-7)  # kept exchanges: to 10 ps
    assert told(second)["allowed"] <= told(second)["lossless"]
    assert told(third)["allowed"] <= told(third)["half"] <= told(third)["lossless"]
    (row,) = (row for row in first.alternatives if row.family == "half")
    advised = replace(asked, lossy=row.allow)
    assert plan_with_verdict(advised).plan.iteration == row.iteration
    assert told(first)["dense"] == told(second)["dense"] == told(third)["dense"]


def test_each_plan_uses_the_methods_of_its_family_alone():
    asked = small("deepfm", "summit", lossy=("fp16", "topk:0.01"))
    names = [family.name for family in families(asked)]
    assert names == ["dense", "lossless", "half", "allowed"]
    dense, lossless, half, allowed = (family.methods for family in families(asked))
    assert dense < lossless < half < allowed
    assert not any(find_method(name).compresses for name in dense)
    assert all(find_method(name).lossless for name in lossless)
    assert {find_method(name).coding for name in half - lossless} == {"fp16"}


def test_families_follow_what_is_allowed():
    def names(**changes: object) -> list[tuple[str, tuple[str, ...]]]:
        return [(f.name, f.request.lossy) for f in families(small("lstm", "summit", **changes))][2:]

    assert names() == [("half", ("fp16",))]
    assert names(lossless=True) == []
    assert names(lossy=("bf16",)) == [("allowed", ("bf16",))]
    assert names(lossy=("topk",)) == [("allowed", ("topk",)), ("half", ("fp16",))]
    assert names(lossy=("fp16", "onebit"))[0] == ("half", ("fp16",))


@pytest.mark.by_day(1)
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "resnet50 --machine p3.16xlarge --nodes 4 --allow fp16",
            "fp16 gains 0.0% (95.87 ms against 95.87 ms): do not compress; all communication is"
            " hidden",
        ),
        ("resnet50 --machine p3.16xlarge --nodes 4", "neither a lossless codec nor fp16 gains"),
        ("lstm --machine p3.16xlarge --nodes 2 --lossless", "no lossless codec gains"),
        ("alexnet --machine summit --nodes 4 --planner ddp-25mb", "planner ddp-25mb takes "),
        ("deepfm --machine summit --nodes 2", "node-union gains "),
    ],
)
def test_the_command_says_what_compressing_gains(words, sentence, tmp_path, capsys):
    path = str(tmp_path / "plan.json")
    assert main(["plan", *words.split(), "-o", path]) == 0
    said = capsys.readouterr().out
    assert sentence in said
    made = plan_file.read(path)
    rows = {row.family: row for row in made.alternatives}
    shown = rows.get("planner") or rows.get("allowed") or rows["lossless"]
    assert ("hidden" in said) == (shown.exposed <= 1e-9)
    assert made.iteration == shown.iteration
    if "do not compress" in said:  # nor does the plan, whatever is allowed
        assert not any(find_method(launch.method).compresses for launch in made.launches)
    # Whoever speaks of the plan says the same.
    main(["show", path])
    assert conclusion(made) in capsys.readouterr().out
    main(["show", path, "--json"])
    data = json.loads(capsys.readouterr().out)["verdict"]
    assert data["conclusion"] == conclusion(made)
    assert [row["iteration_median_seconds"] for row in data["plans"]] == [*told(made).values()]


@pytest.mark.by_day(0)
def test_a_shorter_plan_by_sixteen_bits_is_found_and_taken(tmp_path, capsys):
    """VGG-16 on four p3.16xlarge: at 25 Gbit/s per node the exchange is half of the step."""
    words = ["vgg16", "--machine", "p3.16xlarge", "--nodes", "4"]
    found = []
    for more in ([], ["--allow", "fp16"]):
        assert main(["plan", *words, *more, "--json", "-o", str(tmp_path / "plan.json")]) == 0
        found.append(json.loads(capsys.readouterr().out))
    without, allowed = ({p["family"]: p for p in f["verdict"]["plans"]} for f in found)
    assert (
        without["half"]["iteration_median_seconds"]
        == allowed["allowed"]["iteration_median_seconds"]
    )
    assert without["half"]["saved_share_of_dense"] > 0.4
    said = found[0]["verdict"]["conclusion"]
    assert said.startswith("no lossless codec helps; fp16 would: ")
    assert "% shorter (--allow fp16); " in said
    assert said.endswith(" of communication are exposed")
    assert found[0]["iteration_median_seconds"] == without["lossless"]["iteration_median_seconds"]
    assert found[1]["iteration_median_seconds"] == without["half"]["iteration_median_seconds"]


@pytest.mark.by_day(0)
def test_a_plan_of_another_planner_is_a_row_of_its_own_and_never_better_than_the_best():
    asked = small("alexnet", "summit")
    for planner in ("ddp-25mb", "per-tensor", "greedy"):
        made = plan_with_verdict(asked, planner).plan
        first, *others = made.alternatives
        assert first.family == "planner"
        assert made.planner == planner
        assert made.iteration == first.iteration
        assert min(one.iteration for one in others) <= first.iteration


@pytest.mark.by_day(1)
@pytest.mark.parametrize("strategy", ["gpipe", "daso", "shadow", "samo"])
def test_strategies_without_a_choice_to_compress_get_no_verdict(strategy, tmp_path, capsys):
    net = tmp_path / "net.json"
    words = ["--transformer", "layers=4,hidden=64,heads=4", "-o", str(net)]
    assert main(["models", *words]) == 0
    path = str(tmp_path / "plan.json")
    words = [str(net), "--machine", "summit", "--nodes", "2", "--lanes", "2"]
    assert main(["plan", *words, "--strategy", strategy, "-o", path]) == 0
    said = capsys.readouterr().out
    assert "compress" not in said
    assert plan_file.read(path).alternatives == ()


def row(family: str, milliseconds: float, **changes: object) -> Alternative:
    base = Alternative(
        family=family,
        used=("fp16",) if family in ("half", "allowed") else (),
        allow=("fp16",) if family in ("half", "allowed") else (),
        iteration=milliseconds / 1e3,
        low=milliseconds / 1e3,
        high=milliseconds / 1e3,
        exposed=0.0,
        memory=1.0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def judged(*rows: Alternative, held_out: tuple[HeldOut, ...] = ()) -> str:
    made = plan(graph([10]), replace(machine(), held_out=held_out), ["ring+dense"])
    return conclusion(replace(made, alternatives=rows))


def test_plans_whose_intervals_overlap_are_indistinguishable():
    sure = judged(row("dense", 20.0), row("lossless", 20.0), row("half", 18.0))
    assert "18 ms against 20 ms, 10.0% shorter (--allow fp16)" in sure
    wide = {"low": 0.015, "high": 0.022}
    cell = HeldOut(name="ring+dense 1 B", predicted=1e-3, measured=1.1e-3)
    doubt = judged(
        row("dense", 20.0, **wide),
        row("lossless", 20.0, **wide),
        row("half", 18.0, **wide),
        held_out=(cell,),
    )
    assert "18 ms against 20 ms, indistinguishable: p10 to p90, 15 ms to 22 ms and" in doubt
    assert "1 held-out errors of calibration" in doubt


def test_nothing_is_called_hidden_that_is_exposed():
    rows = [row(family, 10.0, exposed=2e-6) for family in ("dense", "lossless", "half")]
    assert "hidden" not in judged(*rows)
    assert judged(*rows).endswith("2 us of communication are exposed")
    rows = [replace(one, exposed=0.0) for one in rows]
    assert judged(*rows).endswith("all communication is hidden")


def test_gains_that_are_not_worth_a_word_are_none():
    least = 10.0 * (1 - NOTHING / 2)
    rows = row("dense", 10.0), row("lossless", 10.0), row("allowed", least)
    assert re.match(r"fp16 gains 0.0% \(.* ms against 10 ms\): do not compress", judged(*rows))


def test_a_plan_without_a_comparison_says_nothing():
    made = plan(graph([10]), machine(), ["ring+dense"])
    assert conclusion(made) == ""
    assert lines(made) == []


def test_a_forced_codec_is_nobodys_gain():
    force = {"fc6.weight": "ring+fp16"}
    made = plan_with_verdict(small("alexnet", "summit", force=force)).plan
    assert "ring+fp16" in {launch.method for launch in made.launches}
    for one in made.alternatives:
        assert "fp16" not in one.used or one.family == "half"


@pytest.mark.by_day(0)
def test_a_baseline_that_is_interrupted_in_its_reasons_keeps_its_plan():
    def interrupt(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == "explained":
            sys.setprofile(None)
            raise KeyboardInterrupt

    asked = small("alexnet", "p3.16xlarge", time_limit=0.0)
    whole = plan_with_verdict(asked, "ddp-25mb")
    sys.setprofile(interrupt)
    try:
        part = plan_with_verdict(asked, "ddp-25mb")
    finally:
        sys.setprofile(None)
    assert (whole.interrupted, part.interrupted) == (False, True)
    assert all(launch.reason for launch in whole.plan.launches)
    part.plan.check()
    bare = [replace(launch, reason=None) for launch in whole.plan.launches]
    assert list(part.plan.launches) == bare
    assert (part.plan.planner, part.plan.iteration) == ("ddp-25mb", whole.plan.iteration)


@pytest.mark.by_day(0)
def test_a_time_limit_is_for_all_families_together():
    asked = small("vgg16", "p3.16xlarge", time_limit=0.0, lossy=("fp16",))
    made = plan_with_verdict(asked).plan
    made.check()
    assert "allowed" in told(made)
    whole = plan_with_verdict(replace(asked, time_limit=1e6)).plan
    assert whole.hash == plan_with_verdict(replace(asked, time_limit=None)).plan.hash
    assert whole.iteration <= made.iteration


def test_plans_without_seconds_are_compared_without_a_division_by_zero():
    rows = [
        Alternative(
            family=name, iteration=seconds, low=seconds, high=seconds, exposed=0.0, memory=0.0
        )
        for name, seconds in (("dense", 0.0), ("lossless", 0.0), ("half", 1.0))
    ]
    made = replace(plan(graph([8]), machine(1, 2), ["ring+dense"]), alternatives=tuple(rows))
    assert "do not compress" in "\n".join(lines(made))


def test_nothing_is_said_of_codecs_that_no_method_of_the_request_uses():
    asked = only(Request(net=graph([10**6]), machine=machine(2, 2)), ["ring+dense"])
    assert [family.name for family in families(asked)] == ["dense", "lossless"]
    assert conclusion(plan_with_verdict(asked).plan).startswith("do not compress: no lossless")


def test_what_would_gain_no_more_is_named_by_what_is_not_allowed():
    rows = tuple(
        Alternative(
            family=name,
            iteration=s,
            low=s,
            high=s,
            exposed=0.0,
            memory=0.0,
            allow=("fp16",) if name == "half" else (),
            used=() if name == "dense" else ("node-union",),
        )
        for name, s in (("dense", 2.0), ("lossless", 1.0), ("half", 1.0))
    )
    made = replace(plan(graph([8]), machine(1, 2), ["ring+dense"]), alternatives=rows)
    assert "compress; fp16 would gain no more" in conclusion(made)


def test_ranks_of_a_tree_that_wait_for_nobody_end_no_earlier_than_they_begin():
    on = resized(machine_file.load("p3.16xlarge"), 5, 1)
    asked = only(
        Request(net=net_file.load("resnet32"), machine=on), ["centralised", "native+dense"]
    )
    plan_with_verdict(asked).plan.check()


@pytest.mark.parametrize("lossy", [(), ("fp16",)])
def test_no_method_of_the_same_codec_is_nearer_than_the_runner_up(lossy):
    on = resized(machine_file.load("p3.16xlarge"), 2, 2)
    asked = Request(net=graph([2 * 10**5, 3 * 10**6, 10**6]), machine=on, lossy=lossy)
    made = plan_with_verdict(asked).plan
    for k, launch in enumerate(made.launches):
        coding = find_method(launch.method).coding
        for other in asked.methods(on.everyone):
            if other.coding == coding and other.name != launch.method:
                launches = list(made.launches)
                launches[k] = replace(launch, method=other.name, reason=None)
                more = iteration(replace(made, launches=tuple(launches))) - made.iteration
                assert launch.reason.margin <= more + 0.01 * made.iteration
