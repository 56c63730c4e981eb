"""What strategies with stages have in common, and the closed forms of each."""

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsched.cli.main import main
from commsched.cli.plan_facts import stage_lines
from commsched.errors import CommschedError
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.program.model import Kind
from commsched.program.registry import STRATEGIES
from commsched.program.stages import balanced, grid, ranks_of
from commsched.simulate.engine import simulate
from commsched.simulate.report import lines, report
from commsched.timeline.measure import busy, exposed, idle, iteration_seconds, step_starts
from commsched.timeline.summary import summary
from tests.support import sampling
from tests.support.pipeline_plans import (
    BACKWARD,
    FORWARD,
    free,
    makespan,
    net,
    staged,
    without_launches,
)
from tests.support.small_plans import graph, machine, shared

PIPELINES = [name for name, strategy in STRATEGIES.items() if "stages" in strategy.parameters]
FLUSHED = ["gpipe", "1f1b"]


# --- What all of them have beyond the exam of every strategy. ---


@pytest.mark.parametrize("name", PIPELINES)
def test_every_gradient_is_summed_over_the_replicas_of_its_stage_and_applied(name):
    made = staged(name, 3, 2, layers=7)
    for role in STRATEGIES[name].lower(made, 0, {}).roles:
        mine = [op for op in role.ops if op.launch >= 0]
        for op in mine:
            assert made.launches[op.launch].group == role.ranks
        kinds = [op.kind for op in mine]
        assert kinds.count(Kind.ENCODE) == kinds.count(Kind.DECODE) == kinds.count(Kind.APPLY)
    launched = [piece for launch in made.launches for piece in launch.pieces]
    assert sum(stop - start for _, start, stop in launched) == made.net.numel


@pytest.mark.parametrize("name", PIPELINES)
def test_a_stage_of_one_replica_exchanges_nothing(name):
    made = staged(name, 3)
    kinds = {op.kind for role in STRATEGIES[name].lower(made, 0, {}).roles for op in role.ops}
    agreed = {Kind.DECIDE} if STRATEGIES[name].decides else set()
    assert kinds == {Kind.COMPUTE, Kind.SEND, Kind.RECV, Kind.APPLY} | agreed


@pytest.mark.parametrize("name", PIPELINES)
def test_equal_replicas_take_the_time_of_one(name):
    one = without_launches(staged(name, 3, on=free(machine(1, 3))))
    many = without_launches(staged(name, 3, 4, on=free(machine(1, 12))))
    assert makespan(many, 3) == pytest.approx(makespan(one, 3), rel=1e-12)


@pytest.mark.parametrize("name", PIPELINES)
def test_memory_is_that_of_the_largest_stage(name):
    bare = {"head": 0.0} if name == "local" else {}
    memory = STRATEGIES[name].memory(staged(name, 3, 2, **bare))
    whole = STRATEGIES[name].memory(staged(name, 1, 6, layers=3))
    assert memory.parameters == pytest.approx(whole.parameters / 3, rel=0.02)


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"stages": 4}, "4 stages do not divide 6 ranks; nearest: 3"),
        ({"stages": 6}, "6 stages cannot be made of the 5 layers of net 'chain'; allowed: 1 to 5"),
        ({"stages": -1}, "stages cannot be -1; allowed: 0 to 1048576"),
        ({"stages": "two"}, "stages cannot be 'two'; allowed: 0 to"),
        ({"stages": 2.5}, "stages cannot be 2.5; allowed: 0 to"),
        ({"microbatches": 0}, "microbatches cannot be 0; allowed: 1 to 65536"),
        ({"near": "home"}, "near cannot be 'home'; allowed: stages, replicas"),
        ({"message_bytes": float("nan")}, "message_bytes cannot be nan; allowed: 0 to"),
    ],
    ids=str,
)
def test_an_impossible_parameter_is_refused(name, params, message):
    with pytest.raises(CommschedError, match=message):
        make_plan(
            Request(net=net(5), machine=machine(1, 6), strategy=name, params={"stages": 2} | params)
        )


@pytest.mark.parametrize("name", PIPELINES)
def test_a_launch_of_other_ranks_or_of_two_stages_is_refused(name):
    made = staged(name, 2, 2, layers=4)
    first, second = made.launches[0], made.launches[-1]
    wrong = replace(made, launches=(replace(first, group=(0, 1)), *made.launches[1:]))
    with pytest.raises(CommschedError, match="must exchange among the 2 ranks of stage 0"):
        STRATEGIES[name].lower(wrong, 0, {})
    both = replace(made, launches=(replace(first, pieces=(*first.pieces, *second.pieces)),))
    with pytest.raises(CommschedError, match=r"has tensors of stages \[0, 1\]; allowed is one"):
        STRATEGIES[name].lower(both, 0, {})
    late = replace(made, launches=(replace(first, lag=1), *made.launches[1:]))
    with pytest.raises(CommschedError, match="must exchange gradients in every step and merge"):
        STRATEGIES[name].lower(late, 0, {})


@pytest.mark.parametrize("name", PIPELINES)
def test_words_of_a_command_line_are_numbers(name):
    words = make_plan(
        Request(net=net(4), machine=machine(1, 4), strategy=name, params={"stages": "2"})
    )
    assert words.hash == staged(name, 2, 2, layers=4).hash


# --- Cutting a net. ---


@settings(max_examples=sampling.examples(20))
@given(weights=st.lists(st.integers(0, 20), min_size=1, max_size=9), data=st.data())
def test_no_other_cut_has_a_smaller_largest_run(weights, data):

    parts = data.draw(st.integers(1, len(weights)))
    cuts = balanced(weights, parts)
    assert (cuts[0], cuts[-1], len(cuts)) == (0, len(weights), parts + 1)
    assert all(a < b for a, b in pairwise(cuts))

    def largest(bounds):
        return max(sum(weights[a:b]) for a, b in pairwise(bounds))

    best = min(
        largest([0, *inner, len(weights)])
        for inner in combinations(range(1, len(weights)), parts - 1)
    )
    assert largest(cuts) == best


def test_a_stage_sends_the_activations_that_later_layers_read():
    layers = list(net(4).layers)
    layers[1] = replace(layers[1], activation=7.0)
    layers[3] = replace(layers[3], after=("l2", "l0"))  # a shortcut over both cuts
    made = staged("gpipe", 4, layers=replace(net(4), layers=tuple(layers)))
    stages = grid(made, made.params)
    assert [stage.output for stage in stages] == [4000, 4007, 8000, 0]
    forced = staged("gpipe", 4, message_bytes=123)
    assert [stage.output for stage in grid(forced, forced.params)] == [123, 123, 123, 0]


def test_messages_of_unknown_size_are_warned_of_and_activations_too():
    layers = net(4)
    silent = replace(layers, layers=tuple(replace(x, activation=0.0) for x in layers.layers))
    for told, known in ((layers, True), (silent, False)):
        made = staged("gpipe", 2, layers=told)
        assert ("warning: messages carry nothing" in stage_lines(made)[-1]) != known
        assert ("activations unknown" in "\n".join(lines(report(simulate(made, 1))))) != known
    sized = staged("gpipe", 2, layers=silent, message_bytes=8)
    assert "warning" not in stage_lines(sized)[-1]


def test_replicas_or_stages_are_neighbours():
    assert ranks_of(6, 3, "stages") == [(0, 3), (1, 4), (2, 5)]
    assert ranks_of(6, 3, "replicas") == [(0, 1), (2, 3), (4, 5)]


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_as_few_stages_as_fit_are_chosen(name):
    layers = graph([10**6] * 8, FORWARD)
    need = 16.0 * 2 * 10**6 + 1e4  # two layers per rank: parameter, gradient, momentum, bucket
    packets = 4.0 * 10**6  # one of its two runs lands beside a bucket

    def stages(memory):
        request = Request(net=layers, machine=machine(1, 8), strategy=name, memory=memory)
        return make_plan(request).params["stages"]

    assert [stages(m) for m in (1e9, need + packets, need, need - 2e4)] == [1, 4, 8, 8]
    with pytest.raises(CommschedError, match="with 8 stages a rank needs 12 MB, and 1 MB are all"):
        stages(1e6)


# --- Closed forms of GPipe and 1F1B. ---


@pytest.mark.parametrize("name", FLUSHED)
@settings(max_examples=sampling.examples(20))
@given(stages=st.integers(1, 6), m=st.integers(1, 12))
def test_equal_stages_take_m_and_k_minus_1_turns(name, stages, m):
    made = staged(name, stages, on=free(machine(1, stages)), microbatches=m)
    turns = m + stages - 1
    found = makespan(without_launches(made))
    assert found == pytest.approx(turns * (FORWARD + BACKWARD), rel=1e-9)
    # The bubble of every stage: (t_f + t_b)(1 - 1 / K) with the times of the whole net.
    bubble = found - m * (FORWARD + BACKWARD)
    whole = stages * (FORWARD + BACKWARD)
    assert bubble == pytest.approx(whole * (1 - 1 / stages), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", FLUSHED)
@settings(max_examples=sampling.examples(20))
@given(stages=st.integers(1, 6), m=st.integers(1, 12))
def test_a_stage_keeps_the_microbatches_that_are_between_forward_and_backward(name, stages, m):
    made = staged(name, stages, microbatches=m)
    most = 0
    for role in STRATEGIES[name].lower(made, 0, {}).roles:
        turns = [op.name.startswith("forward") for op in role.ops if op.kind is Kind.COMPUTE]
        most = max(most, int(np.cumsum(np.where(turns, 1, -1)).max()))
    assert most == (m if name == "gpipe" else min(m, stages))
    assert STRATEGIES[name].memory(made).activations == most * 4000.0


@pytest.mark.parametrize("name", FLUSHED)
def test_a_report_has_the_bubble_the_exposed_messages_and_the_memory(name):
    quiet = report(simulate(without_launches(staged(name, 4, on=free(machine(1, 4)))), 3))
    assert quiet["bubble_median_seconds"] == pytest.approx(3 * (FORWARD + BACKWARD), rel=1e-9)
    assert quiet["exposed_median_seconds"] == 0.0
    made = staged(name, 4, 2)
    found = report(simulate(made, 3))
    assert found["exposed_median_seconds"] > 0.0
    assert found["memory_bytes"]["total"] == STRATEGIES[name].memory(made).total
    said = lines(found)
    assert any(line.startswith("bubble per step: ") for line in said)
    timeline = simulate(made, 3).timeline()
    assert summary(timeline)["bubble_median_seconds"] == found["bubble_median_seconds"]
    assert summary(simulate(staged(name, 1, 2), 3).timeline())["bubble_median_seconds"] is None


@given(stages=st.integers(1, 4), jitter=st.sampled_from([0.0, 0.2]))
@settings(max_examples=sampling.examples(10))
def test_what_a_rank_does_and_its_idle_time_fill_its_steps(stages, jitter):
    made = staged("1f1b", stages, 2, on=machine(1, 2 * stages, jitter), microbatches=3)
    timeline = simulate(made, 3).timeline()
    empty = idle(timeline)
    assert (empty >= -1e-12).all()
    # Nothing but coding runs beside computing and exposed communication.
    compute = busy(timeline)[:, :, 0]
    coding = busy(timeline)[:, :, [1, 4]].sum(axis=2)
    least = compute + exposed(timeline) + empty
    starts = step_starts(timeline)
    lengths = np.diff(np.column_stack([starts, np.full(len(starts), timeline.end.max())]), axis=1)
    iterations, whole = iteration_seconds(timeline)[:-1], lengths[:, :-1]
    assert (iterations <= whole.max(axis=0) + 1e-12).all()
    assert (iterations >= whole.min(axis=0) - 1e-12).all()
    assert (least <= lengths + 1e-12).all()
    assert (lengths <= least + coding + 1e-12).all()


def test_a_plan_goes_through_all_commands(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    params = ["--param", "stages=4", "--param", "microbatches=8", "--param", "message_bytes=1e5"]
    where = ["--machine", "localhost", "--nodes", "1", "--lanes", "8"]
    assert main(["plan", "alexnet", *where, "--strategy", "gpipe", *params, "-o", "p.json"]) == 0
    said = capsys.readouterr().out
    assert "stages 4, microbatches 8, near stages, message_bytes 100000.0" in said
    assert "memory per rank: " in said
    assert main(["show", "p.json"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[:3] for row in rows if row and row[0] in "0123"] == [
        [str(k), f"{k},", str(k + 4)] for k in range(4)
    ]
    assert main(["simulate", "p.json", "-o", "t.json", "--steps", "3"]) == 0
    assert "bubble per step: " in capsys.readouterr().out
    assert main(["plot", "t.json", "-o", "t.png"]) == 0
    assert main(["plot", "t.json", "-o", "t.html"]) == 0
    assert (tmp_path / "t.png").stat().st_size > 10_000
    wrong = ["--strategy", "gpipe", "--param", "stages=3", "-o", "q.json"]
    assert main(["plan", "alexnet", *where, *wrong]) == 2
    assert "3 stages do not divide 8 ranks; nearest: 2" in capsys.readouterr().err


@pytest.mark.parametrize("name", FLUSHED)
def test_steps_follow_each_other_without_overlap(name):
    made = staged(name, 3, 2, on=free(machine(1, 6)), microbatches=4)
    apply = 100 * 20 / 1e11
    found = iteration_seconds(simulate(made, 4).timeline())
    least = (4 + 3 - 1) * (FORWARD + BACKWARD) + apply
    assert (found[:-1] >= least - 1e-12).all()
    np.testing.assert_allclose(found[:-1], least, rtol=1e-3)  # and packing of 400 B


@pytest.mark.parametrize("shape", [(1, 8), (2, 4), (4, 2)])
def test_the_sums_of_replicas_wait_for_those_of_turns_on_their_stream(shape):
    wide = shared(graph([400_000] * 8, 1e-3), summed=200_000)
    params = {"tensor": 2, "pipeline": 2, "microbatches": 2}
    wanted = Request(net=wide, machine=machine(*shape), strategy="3d", params=params, bucket=1.0)
    found = simulate(make_plan(wanted, "greedy"), 3).timeline()
    lane = found.rank.astype(np.int64) * len(found.streams) + found.stream
    order = np.lexsort((found.end, found.start, lane))
    same = lane[order][1:] == lane[order][:-1]
    assert (found.start[order][1:] - found.end[order][:-1])[same].min() >= -1e-12
