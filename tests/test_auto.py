"""`plan --strategy auto`: laws of its rows, and cases whose right answer is known."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.machine import file as machine_file
from commsched.machine.model import Device, Link, Machine, placement
from commsched.machine.slowed_links import slower
from commsched.net import file as net_file
from commsched.net.graph import Layer, Net, Tensor
from commsched.planner.auto import search
from commsched.planner.auto.choose import ChosenStrategy, choose
from commsched.planner.auto.learning import cost, cost_of, lessons
from commsched.planner.auto.reasons import left_out, reasons
from commsched.planner.auto.rows import Row, request_of, times
from commsched.planner.families import plan_with_verdict
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.program.registry import STRATEGIES
from tests.support.auto_search import check_floors

RANKS, NODES = 4, 2
BATCH = 4e-3  # s of two layers' forward and backward
GIGABIT = 8e-9  # s/B


def machine(per_byte: float = GIGABIT, memory: float = 1e12, nodes: int = NODES) -> Machine:
    """Two nodes of two ranks, on links of one rate."""
    link = Link(latency=1e-6, overhead=0.0, per_byte=per_byte)
    device = Device(name="flat", flops=1e15, bandwidth=1e15, memory=memory)
    return Machine(
        name="flat",
        node_of_rank=placement(nodes, RANKS // nodes),
        inside=link,
        between=link,
        device=device,
    )


def net(numel: int = 1_000_000, output: float = 100.0) -> Net:
    """Two equal layers, whose activations are small."""
    layers = tuple(
        Layer(
            name=f"l{k}",
            after=(f"l{k - 1}",) if k else (),
            tensors=(Tensor(name=f"w{k}", shape=(numel,)),),
            forward=BATCH / 4,
            backward=BATCH / 4,
            output=output,
            activation=output,
        )
        for k in range(2)
    )
    return Net(name="two layers", layers=layers)


def chosen(request: Request, **more: object) -> ChosenStrategy:
    """Choose with a planner that takes no time."""
    return choose(request, "ddp-25mb", **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def wide() -> ChosenStrategy:
    """All that can be planned, also what was not measured."""
    request = Request(net=net(10_000), machine=machine())
    return chosen(request, unmeasured=True, lost=1e9, exhaustive=True)


@pytest.mark.by_day(0)
@pytest.mark.parametrize("case", ["slow links", "jitter"])
def test_what_the_search_leaves_out_is_neither_winner_nor_runner_up(case: str) -> None:
    request = Request(net=net(3_000_000, output=2e6), machine=machine(nodes=1))
    if case == "jitter":
        request = Request(net=net(500_000), machine=replace(machine(), jitter=0.2), seed=3)
    check_floors(request)


@pytest.mark.by_day(0)
def test_every_registered_strategy_has_a_row_or_a_reason(wide: ChosenStrategy) -> None:
    with_row = {row.candidate.strategy for row in wide.rows}
    without = {one.candidate.strategy for one in wide.left_out}
    assert with_row | without == set(STRATEGIES)
    assert {"sync", "daso", "shadow", "samo", "gpipe", "1f1b", "local", "zero3"} <= with_row


@pytest.mark.by_day(0)
def test_a_row_is_the_plan_of_its_strategy(wide: ChosenStrategy) -> None:
    request = Request(net=net(10_000), machine=machine())
    for row in wide.best:
        strategy, params = row.candidate
        alone = replace(request, strategy=strategy, params=params)
        plan = plan_with_verdict(alone, "ddp-25mb").plan
        assert plan.hash == row.plan.hash
        assert times(plan).step * RANKS / row.batches == pytest.approx(row.time)
        assert row.memory == STRATEGIES[strategy].memory(plan).total


@pytest.mark.by_day(0)
def test_the_winner_is_the_least_of_the_rows_that_may_be_chosen() -> None:
    choice = chosen(Request(net=net(10_000), machine=machine()))
    legal = [row for row in choice.rows if not row.refused]
    assert choice.winner.time == min(row.time for row in legal)
    assert choice.runner_up in legal
    for row in choice.rows:
        lost = row.learning.lost
        assert bool(row.refused) == (lost is None or lost > 0.5)


@pytest.mark.by_day(0)
def test_without_exchanges_to_hide_data_parallelism_computes_without_a_bubble() -> None:
    choice = chosen(Request(net=net(100), machine=machine(per_byte=1e-12)), exhaustive=True)
    assert choice.winner.time == pytest.approx(BATCH, rel=0.02)
    pipeline = next(row for row in choice.best if row.candidate.strategy == "gpipe")
    # Two stages, two microbatches: (2 + 2 - 1) / 2 as long.
    assert pipeline.time == pytest.approx(1.5 * BATCH, rel=0.02)
    assert pipeline.times.bubble > 0.2 * pipeline.time


@pytest.mark.by_day(0)
def test_large_layers_on_slow_links_are_cut_into_stages() -> None:
    """On two ranks two stages exchange no gradient, and data parallelism a second's worth."""
    two = replace(machine(nodes=1), node_of_rank=(0, 0))
    choice = chosen(Request(net=net(12_500_000), machine=two))
    assert STRATEGIES[choice.winner.candidate.strategy].parameters.keys() >= {"microbatches"}
    sync = next(row for row in choice.best if row.candidate.strategy == "sync")
    assert sync.time > 10 * choice.winner.time
    assert "takes as long" in reasons(choice)[1]  # GPipe and 1F1B of two microbatches
    against = reasons(replace(choice, runner_up=sync))[1]
    assert "more exposed communication" in against


@pytest.mark.by_day(0)
def test_what_does_not_fit_is_left_out_with_its_need() -> None:
    request = Request(net=net(1_000_000), machine=machine(memory=24e6))
    choice = chosen(request)
    assert all(row.memory <= 24e6 for row in choice.rows)
    assert "sync" not in {row.candidate.strategy for row in choice.rows}
    assert any(line.startswith("not tried: sync (1): a memory limit") for line in left_out(choice))
    with pytest.raises(CommschedError, match="no strategy has a plan within 1 kB per rank"):
        chosen(replace(request, memory=1e3))


def test_no_candidate_takes_the_time_of_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def timed(request: Request, *more: object) -> Row:
        assert request.time_limit is not None
        limits.append(request.time_limit)
        return made(request, *more)  # type: ignore[arg-type]

    made = search.row
    monkeypatch.setattr(search, "row", timed)
    chosen(Request(net=net(10_000), machine=machine(), time_limit=1e4))
    assert len(limits) > 1
    assert 0 < limits[0] <= 1e4 / 4
    assert max(limits) <= 1e4


@pytest.mark.by_day(0)
def test_a_net_of_unknown_messages_is_not_cut() -> None:
    choice = chosen(Request(net=net(output=0.0), machine=machine()))
    assert "gpipe" not in {row.candidate.strategy for row in choice.rows}
    assert any("does not say how many bytes its layers give" in x for x in left_out(choice))


def test_parameters_of_the_request_are_kept() -> None:
    wanted = Request(net=net(10_000), machine=machine(), params={"gs": "2"})
    choice = chosen(wanted, unmeasured=True)
    assert [row.candidate.words for row in choice.rows] == ["daso gs=2"]
    assert any(line.startswith("not tried: 1f1b (1)") for line in left_out(choice))


@pytest.mark.by_day(0)
def test_an_error_budget_leaves_nothing_lossy_to_frames() -> None:
    wanted = Request(
        net=net(10_000), machine=machine(), lossy=("fp16",), max_error=0.01, strategy="auto"
    )
    found = chosen(wanted)
    assert next(row for row in found.rows if row.candidate.strategy == "daso").refused
    zero = next(row for row in found.rows if row.candidate.strategy == "zero1")
    assert request_of(wanted, zero.candidate, 1e12).lossy == ()
    assert not zero.refused


def test_cost_in_learning_is_measured_or_not_known() -> None:
    def of(strategy: str, lossy: tuple[str, ...] = (), **params: object) -> float | None:
        wanted = Request(
            net=net(10_000),
            machine=machine(),
            strategy=strategy,
            params=params,  # type: ignore[arg-type]
            lossy=lossy,
            force={f"w{k}": f"all-gather+{lossy[0]}" for k in range(2)} if lossy else {},
        )
        return cost(make_plan(wanted, "ddp-25mb")).lost

    by_case = {}
    for lesson in lessons():
        by_case[lesson.case] = max(lesson.lost, by_case.get(lesson.case, lesson.lost))
    assert of("sync") == of("zero3") == of("gpipe", stages=2) == 0.0
    assert of("daso") == max(by_case["daso"], by_case["daso-short"])
    assert of("daso", gs=2) is None
    assert of("shadow", every=4) is None
    assert of("sync", ("onebit",)) == by_case["onebit"]
    assert of("sync", ("topk:0.5",)) is None
    assert of("zero1", gather="fp8") is None


def test_a_cost_of_nothing_is_said_as_0(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(lesson.lost == 0.0 or abs(lesson.lost) > 1e-9 for lesson in lessons())
    nothing = tuple(lesson for lesson in lessons() if lesson.case == "daso-gs8" and not lesson.lost)
    monkeypatch.setattr("commsched.planner.auto.learning.lessons", lambda: nothing)
    wanted = Request(net=net(10_000), machine=machine(), strategy="daso", params={"gs": 8})
    assert str(cost(make_plan(wanted, "ddp-25mb"))).startswith("loses 0 +- 0.34 points of accuracy")


def test_slower_links_take_longer_by_their_share() -> None:
    found = slower(machine(), 0.5)
    assert found.between.per_byte == pytest.approx(2 * GIGABIT)
    assert found.inside.per_byte == pytest.approx(2 * GIGABIT)
    assert found.device == machine().device


def test_command_writes_the_winner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, files = tmp_path / "plan.json", [tmp_path / "net.json", tmp_path / "machine.json"]
    net_file.write(files[0], net(10_000))
    machine_file.write(files[1], machine())
    words = ["plan", str(files[0]), "--machine", str(files[1]), "--ranks", "2", "-o", str(path)]
    assert main([*words, "--strategy", "auto", "--planner", "ddp-25mb", "--json"]) in (0, None)
    told = json.loads(capsys.readouterr().out)
    first = next(row for row in told["choice"]["rows"] if row["verdict"] == "chosen")
    assert told["strategy"] == first["strategy"]
    assert json.loads(path.read_text())["strategy"] == first["strategy"]
    assert told["ranks"] == 2
    assert main([*words, "--unmeasured"]) == 2
    assert "--unmeasured needs --max-lost" in capsys.readouterr().err


def test_of_allowed_codecs_those_stay_that_cost_no_more_in_learning(tmp_path, capsys):
    path = tmp_path / "plan.json"
    words = ["plan", "vgg16", "--machine", "p3dn.24xlarge", "--nodes", "2", "-o", str(path)]
    words += ["--time-limit", "0", "--allow", "fp16"]
    worst = cost_of("fp16").lost

    def planned(*more):
        assert main([*words, *more]) in (0, None)
        return {launch["method"] for launch in json.loads(path.read_text())["launches"]}

    assert any("fp16" in method for method in planned())
    assert f"cost in learning: loses {worst:.2g}" in capsys.readouterr().out
    assert any("fp16" in method for method in planned("--max-lost", f"{worst * 1.1:g}"))
    assert "leaves out" not in capsys.readouterr().err
    assert not any("fp16" in method for method in planned("--max-lost", f"{worst * 0.9:g}"))
    assert "leaves out fp16, whose cost in learning is: loses" in capsys.readouterr().err
    words[-1] = "topk:0.07"
    planned("--max-lost", "1e9")
    assert (
        "leaves out topk:0.07, whose cost in learning is: not measured" in capsys.readouterr().err
    )
    planned("--max-lost", "1e9", "--unmeasured")
    assert "leaves out" not in capsys.readouterr().err
