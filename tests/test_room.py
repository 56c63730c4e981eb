"""What launches take of a rank's memory, and plans within a limit."""

import gc
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.exchange.lockstep import fresh_states, run_method
from commsched.exchange.memory import launch_memory
from commsched.exchange.registry import find_method, legal_methods
from commsched.exchange.state import kept_of
from commsched.kernels.hashing import Sets, index_sets
from commsched.net.bucket import BucketSpec
from commsched.plan import file as plan_file
from commsched.planner.limits.memory import needed
from commsched.planner.make_plan import make_plan
from commsched.planner.only_methods import only
from commsched.planner.request import Request
from commsched.program.registry import STRATEGIES
from commsched.quantities import GIGABYTES
from commsched.units import nbytes
from tests.support import sampling
from tests.support.small_plans import graph, machine, mixture, plan, shared

NUMEL = 2**12
GROUP = machine(2, 2).everyone
MORE = ("powersgd:2", "topk:0.01:reused", "dgc:0.01", "gtopk:0.01")
NAMES = sorted({m.name for m in legal_methods(GROUP, more=MORE)})
# A codec keeps the same whichever collective carries it.
TOLD = sorted({name.partition("+")[2] or name: name for name in NAMES}.values())
MEMORY = STRATEGIES["sync"].memory


@pytest.mark.parametrize("name", TOLD)
def test_what_a_method_keeps_is_what_its_state_holds(name):
    method, rng = find_method(name), np.random.default_rng(0)
    spec = BucketSpec.uniform(NUMEL, 0.05) if method.lossless else BucketSpec.uniform(NUMEL)
    states = fresh_states([np.zeros(NUMEL, np.float32) for _ in range(4)], name="b0")
    for step in range(3):
        for state in states:
            values = rng.standard_normal(NUMEL).astype(np.float32)
            state["step"] = step
            state["gradient"][:] = values
        run_method(method, spec, GROUP, states)
    values = kept_of(states[0]).values()
    every = [each for value in values for each in (value if isinstance(value, tuple) else [value])]
    held = sum(each.nbytes for each in every if isinstance(each, np.ndarray))
    assert held == pytest.approx(method.kept(spec), rel=0.05, abs=64)


@pytest.mark.parametrize(
    ("methods", "sizes", "held"),
    [
        (["zen"], [4096], 4096 // 2),  # of the rank's own lane
        (["zen", "zen:hierarchical", "zen"], [4096, 4096, 2048], 4096 // 2 + 2048 // 2),
        (["balanced"], [1001], 1001),
        (["all-gather+hash-bitmap:16"], [1001], 1001),
        (["ring+hash-bitmap:16"], [1001], 250 + 251),  # both lengths of its blocks
        (["halving-doubling+hash-bitmap:16"], [1024], 512 + 256),
        (["ring+hash-bitmap:16", "ring+hash-bitmap:4"], [1024, 1024], 256 + 256),
        (["ring+coo", "split-all-gather"], [1024, 1024], 0),
    ],
)
def test_index_sets_are_counted_as_often_as_they_are_held(methods, sizes, held):
    made = plan(graph(sizes), machine(2, 2), methods)
    index_sets.cache_clear()
    for launch in made.launches:
        spec = made.spec(launch)
        states = fresh_states([np.eye(1, spec.numel, dtype=np.float32)[0] for _ in range(4)])
        run_method(find_method(launch.method), spec, made.group(launch), states)
    # Asked for its class, an object of PyTorch's may warn.
    sets = [each for each in gc.get_objects() if type(each) is Sets]
    there = sum(each.order.nbytes + each.place.nbytes for each in sets)
    assert there == MEMORY(made).residuals == 8 * held
    index_sets.cache_clear()


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("native+dense", 0.0),  # in place; what MPI takes is its own
        ("ring+dense", 3 / 4),
        ("doubling+dense", 2.0),
        ("halving-doubling+dense", 3 / 4),
        ("ring+fp16", 4 / 8),
        ("all-gather+dense", 1.0 + 3.0),
        ("all-gather+fp16", 0.5 + 1.5),
    ],
)
def test_packets_beside_a_bucket_of_four_ranks(name, share):
    found = launch_memory(name, BucketSpec.uniform(NUMEL), machine(1, 4).everyone)
    assert found.waiting + found.received == pytest.approx(share * 4 * NUMEL)


def wanting(**changes) -> Request:
    net = graph([300_000, 200_000, 400_000, 100_000], seconds=1e-4)
    return Request(net=net, machine=machine(2, 2), **changes)


@pytest.mark.by_day(0)
@pytest.mark.parametrize("lossy", sampling.some([(), ("powersgd:2", "fp16")], 1))
def test_every_limit_is_met_or_refused_with_one_that_can_be_met(lossy):
    free = make_plan(wanting(lossy=lossy))
    most = MEMORY(free)
    least = most.total - most.residuals - most.packets
    for share in (0.7, 0.05, 0.0):
        limit = least + share * (most.total - least)
        made = make_plan(wanting(lossy=lossy, memory=limit))
        assert MEMORY(made).total <= limit * (1 + 1e-9)
        assert made.iteration >= free.iteration * (1 - 1e-3)
    with pytest.raises(CommschedError, match="; nearest: a limit of ") as refusal:
        make_plan(wanting(lossy=lossy, memory=least / 2))
    near = GIGABYTES.read(str(refusal.value).rpartition(" ")[2], "memory")
    assert MEMORY(make_plan(wanting(lossy=lossy, memory=near))).total <= near * (1 + 1e-9)


@pytest.mark.parametrize(
    ("strategy", "params"),
    [
        ("shadow", {}),
        ("gpipe", {"stages": 1}),
        ("gpipe", {}),
        ("1f1b", {}),
        ("tensor", {"tensor": 2}),
        ("3d", {}),
        ("3d", {"tensor": 2, "pipeline": 1, "zero": 1}),  # its launches take the rest of the limit
        ("daso", {}),
    ],
)
def test_the_limit_that_a_strategy_advises_holds(strategy, params):
    request = wanting(strategy=strategy, params=params)
    request = replace(request, net=shared(request.net))
    with pytest.raises(CommschedError, match="; nearest: a limit of ") as refusal:
        make_plan(replace(request, memory=1e3))
    near = GIGABYTES.read(str(refusal.value).rpartition(" ")[2], "memory")
    assert needed(make_plan(replace(request, memory=near))) <= near * (1 + 1e-9)
    with pytest.raises(CommschedError, match="; nearest: "):
        make_plan(replace(request, memory=near * 0.999))


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "expert", "gpipe"])
def test_a_codec_that_may_be_used_is_no_reason_to_refuse(strategy):
    params = {"gpipe": {"stages": 1}, "expert": {"expert": 2}}.get(strategy, {})
    dense = replace(wanting(strategy=strategy, params=params, bucket=1e9), machine=machine(4, 1))
    dense = replace(dense, net=mixture(dense.net))
    request = replace(dense, lossy=("topk:0.01",))
    limit = needed(make_plan(dense))
    assert needed(make_plan(request)) > limit
    assert needed(make_plan(replace(request, memory=limit))) <= limit
    with pytest.raises(CommschedError, match="; nearest: a limit of ") as refusal:
        make_plan(replace(request, memory=1e3))
    near = GIGABYTES.read(str(refusal.value).rpartition(" ")[2], "memory")
    assert near <= limit + 1
    assert needed(make_plan(replace(request, memory=near))) <= near


@pytest.mark.parametrize("strategy", ["shadow", "gpipe"])
def test_methods_of_small_packets_are_taken_only_where_a_strategy_needs_them(strategy):
    params = {"stages": 1} if strategy == "gpipe" else {}
    request = wanting(strategy=strategy, params=params)
    free = make_plan(request)
    most = STRATEGIES[strategy].memory(free)
    assert most.packets
    assert make_plan(replace(request, memory=most.total)).hash == free.hash
    assert needed(make_plan(replace(request, memory=most.total - 8))) <= most.total - 8


def test_a_limit_that_holds_changes_nothing():
    free = make_plan(wanting())
    assert make_plan(wanting(memory=MEMORY(free).total)).hash == free.hash


def test_what_is_forced_and_the_size_of_buckets_stay_under_a_limit():
    forced = {"l2.weight": "doubling+dense"}
    made = make_plan(wanting(force=forced, memory=MEMORY(make_plan(wanting(force=forced))).total))
    (own,) = [x for x in made.launches if x.pieces[0].tensor == "l2.weight"]
    assert own.method == "doubling+dense"
    with pytest.raises(CommschedError, match=r"packets 3\.2 MB"):  # two rounds of 1.6 MB each
        make_plan(wanting(force=forced, memory=16.1e6))


def test_a_baseline_stays_what_it_is_and_is_refused():
    request = wanting(memory=16.1e6)
    made = make_plan(replace(request, memory=None), "all-coo")
    with pytest.raises(CommschedError, match=r"needs .*; nearest: a limit of 0\.0"):
        make_plan(replace(request, memory=MEMORY(made).total / 2), "all-coo")


TOO_LARGE = [("gpt3-1.3b", "1f1b"), ("gpt3-13b", "1f1b"), ("gpt3-175b", None)]


@pytest.mark.by_day(0)
@pytest.mark.parametrize(("net", "strategy"), sampling.some(TOO_LARGE, 2))
def test_a_plan_that_does_not_fit_says_so_and_names_a_strategy_that_does(
    net, strategy, tmp_path, capsys
):
    path = str(tmp_path / "plan.json")
    words = ["plan", net, "--machine", "p3.16xlarge", "--nodes", "4", "-o", path]
    assert main([*words, "--time-limit", "0"]) == 0
    said = capsys.readouterr().out
    assert "warning: the plan does not fit: a rank needs " in said
    limit = plan_file.read(path).machine.device.memory
    advised = re.search(r"; (--strategy .*) fits with (.*)", said)
    assert main([*words, "--time-limit", "0", "--json"]) == 0
    warned = json.loads(capsys.readouterr().out)["warnings"]
    assert f"warning: {warned[-1]}" in said.splitlines()
    if strategy is None:
        assert advised is None
        assert "no pipeline of 32 ranks fits either" in said
        return
    assert advised is not None
    assert advised[1].startswith(f"--strategy {strategy}")
    assert main([*words, *advised[1].split()]) == 0
    said = capsys.readouterr().out
    assert "does not fit" not in said
    made = plan_file.read(path)
    memory = STRATEGIES[made.strategy].memory(made)
    assert memory.total <= limit
    assert advised[2] == nbytes(memory.total)


def test_sizes_are_those_of_the_types_of_the_net(tmp_path, capsys):
    main(["models", "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["nets"]}
    words = ["gpt3-1.3b", "--machine", "summit", "--nodes", "1", "--time-limit", "0"]
    main(["plan", *words, "-o", str(tmp_path / "plan.json")])
    shown = nbytes(rows["gpt3-1.3b"]["gradient_bytes"])
    assert f"gpt3-1.3b ({shown} of gradients)" in capsys.readouterr().out
    main(["show", "gpt3-1.3b"])
    assert f"{shown} of float16" in capsys.readouterr().out
    made = plan_file.read(tmp_path / "plan.json")
    assert STRATEGIES["sync"].memory(made).parameters == rows["gpt3-1.3b"]["gradient_bytes"]


def test_methods_that_all_keep_something_fit_in_smaller_buckets():
    request = only(Request(net=graph([200_000] * 8), machine=machine(2, 2)), ["all-gather+onebit"])
    whole = needed(make_plan(request))
    with pytest.raises(CommschedError, match="nearest: a limit of"):
        make_plan(replace(request, memory=1e3))
    made = make_plan(replace(request, memory=whole * 0.999))
    assert needed(made) < whole
    assert {launch.method for launch in made.launches} == {"all-gather+onebit"}
