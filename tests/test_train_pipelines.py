"""Pipelines that train on real ranks: the same bits for any number of stages, and SAMO's bytes."""

import json
from functools import cache

import pytest

from commsched.cli.main import main
from commsched.plan import file as plan_file
from commsched.planner.fixed_method import given
from commsched.planner.request import Request
from commsched.timeline import file as timeline_file
from commsched.train.digest import digest_of, digests_of
from tests.support import sampling
from tests.support.learning_pipelines import BATCH, STEPS, graph
from tests.support.small_plans import machine
from tests.test_samo_learns import masked_dense
from tests.test_train import losses, train

FIXED = ("--batch", str(BATCH), "--steps", str(STEPS), "--optimizer", "adam", "--rate", "0.01")


@pytest.fixture(scope="module")
def piped(tmp_path_factory):
    """Trains: the result and the losses; once for all tests."""
    log = tmp_path_factory.mktemp("piped") / "log.jsonl"

    @cache
    def run(
        ranks: int, net: str, strategy: str, stages: int, *more: str
    ) -> tuple[dict, list[float]]:
        method = "ring+fp16" if strategy == "samo" else "ring+dense"
        words = ["--net", net, "--strategy", strategy, "--method", method, "--log", str(log)]
        words += ["--param", f"stages={stages}", "--param", "microbatches=2"]
        words += [word for param in more for word in ("--param", param)]
        return train(ranks, *words, *FIXED), losses(log)

    return run


CASES = [("cnn:2", "gpipe"), ("gpt:8:1:2", "samo"), ("mlp:8:3", "1f1b")]


@pytest.mark.by_day(1)
@pytest.mark.parametrize(("net", "strategy"), sampling.some(CASES, 2))
def test_losses_and_parameters_are_the_same_with_one_two_and_four_stages(net, strategy, piped):
    runs = (piped(stages, net, strategy, stages) for stages in (1, 2, 4))
    found, logs = zip(*runs, strict=True)
    assert len(logs[0]) == STEPS
    assert logs[0] == logs[1] == logs[2]
    for key in ("parameters", "held_out_accuracy"):
        assert found[0][key] == found[1][key] == found[2][key], key


def test_replicas_of_two_stages_learn_what_replicas_of_one_do(piped):
    (one, _), (two, _) = piped(2, "mlp:8:3", "1f1b", 1), piped(4, "mlp:8:3", "1f1b", 2)
    assert one["parameters"] == two["parameters"]
    assert one["loss"] == two["loss"]


def test_interleaved_stages_of_two_replicas_learn_what_stages_in_a_row_do(piped):
    (one, losses_of_one), (two, losses_of_two) = (
        piped(4, "mlp:8:3", "1f1b", 2, *more) for more in ((), ("interleave=2",))
    )
    assert one["parameters"] == two["parameters"]
    assert losses_of_one == losses_of_two
    assert one["held_out_loss"] == two["held_out_loss"]
    assert two["sent_mean_bytes"] > one["sent_mean_bytes"]


def test_losses_of_other_numbers_of_replicas_differ_by_rounding_alone(piped):
    """Of one batch: four replicas of one stage, two of two, one of four."""
    found = [piped(4, "mlp:8:3", "1f1b", stages)[1] for stages in (1, 2, 4)]
    assert len(found[0]) == STEPS
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[0] == pytest.approx(found[2], rel=1e-5)


def test_samo_on_real_ranks_is_masked_dense_adam_and_sends_f_phi_halves(tmp_path):
    """Two stages of two replicas; a rank sends 2 (D - 1) / D * 2 f phi bytes of sums a step."""
    net, graph, measured = "mlp:8:3", tmp_path / "net.json", tmp_path / "measured.json"
    words = ["profile", net, "--batch", str(BATCH // 4), "--precision", "fp16", "-o", str(graph)]
    assert main(words) == 0
    sent = {}
    for pruned in (0.0, 0.75):
        path = tmp_path / f"{pruned}.json"
        words = ["plan", str(graph), "--machine", "localhost", "--nodes", "1", "--lanes", "4"]
        words += ["--strategy", "samo", "--param", "stages=2", "--param", "microbatches=2"]
        assert main([*words, "--param", f"pruned={pruned}", "-o", str(path)]) == 0
        given = ("--plan", str(path), "-o", str(measured))
        words = ["--net", net, "--strategy", "samo", *FIXED]
        found = train(4, *words, *given)
        plan = plan_file.read(path)
        assert found["parameters"] == digest_of(digests_of(masked_dense(net, plan, 2, 2)[0]))
        spans = [s for s in timeline_file.read(measured) if s.name.endswith("/exchange")]
        for launch in plan.launches:
            mine = [s for s in spans if s.name == f"{launch.name}/exchange"]
            kept = plan.spec(launch).numel
            each = {s.nbytes for s in mine}
            assert {s.rank for s in mine} == set(launch.group)
            assert sum(each) == len(each) * 2 * kept
        sent[pruned] = sum(s.nbytes for s in spans)
        kept = plan.net.numel
        assert sent[pruned] == STEPS * 2 * 2 * kept
    assert sent[0.75] / sent[0.0] == pytest.approx(0.25, rel=0.02)  # whole elements
    decided = timeline_file.read(measured).decisions
    assert decided == {f"{step}/overflow/decide": 0.0 for step in range(STEPS)}
    predicted = tmp_path / "predicted.json"
    again = ["simulate", str(path), "-o", str(predicted), "--steps", str(STEPS)]
    assert main([*again, "--replay", str(measured)]) == 0
    rows = [
        {(s.rank, s.step, s.stream, s.name): s.nbytes for s in timeline_file.read(p)}
        for p in (predicted, measured)
    ]
    assert rows[0] == rows[1]


def test_an_evaluation_of_stages_may_take_longer_than_the_timeout(tmp_path):
    net, path = "words:64:8000", tmp_path / "plan.json"  # ninety parts of some hundredths of a s
    params = {"stages": 2, "microbatches": 2}
    request = Request(
        net=graph(net, 2, False), machine=machine(1, 2), strategy="1f1b", params=params
    )
    plan_file.write(path, given(request, "ring+dense"))
    words = ("--net", net, "--plan", str(path), "--batch", "4", "--steps", "1")
    assert train(2, *words, "--timeout", "0.5")["held_out_loss"]


def test_without_a_number_of_stages_as_few_are_made_as_the_memory_needs(tmp_path):
    log = tmp_path / "log.jsonl"
    words = ("--net", "mlp:8:3", "--strategy", "1f1b", "--param", "microbatches=2", *FIXED)
    found = train(2, *words, "--log", str(log))
    assert found["strategy"] == "1f1b"
    assert len(losses(log)) == STEPS
    assert json.loads(log.read_text().splitlines()[0])["strategy"] == "1f1b"
