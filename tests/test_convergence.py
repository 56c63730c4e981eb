"""The convergence table: trainings in one process are those of real ranks; means and intervals."""

from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import pytest

from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.lab.convergence import table as convergence
from commsched.lab.convergence import trainings as bench
from commsched.lab.convergence.cases import cases, plan_of
from commsched.lab.convergence.curves import draw_curves, draw_rates
from commsched.lab.convergence.figure import draw
from commsched.lab.convergence.page import markdown, seconds_of
from commsched.lab.convergence.repeated_training import train_again
from commsched.lab.convergence.table import CaseResult, ConvergenceTable, Tried
from commsched.lab.convergence.tables import TABLES
from commsched.lab.convergence.trainings import ConvergenceRequest
from commsched.lab.convergence.tuning import best, beyond, tuned
from commsched.plan import file as plan_file
from commsched.program.registry import STRATEGIES
from commsched.study import workers
from commsched.train.registry import DATA
from commsched.train.trials import HeldOutScore, OneTraining, Trainings, mean, read, student, write

LIMIT = 120.0  # s
ROOT = Path(__file__).parent.parent
RECORDED = {
    path.parent.name: path for path in (ROOT / "traces" / "convergence").glob("*/table.json")
}
KNOWN = {case.name: case for case in cases("digits")}
DEEP = {case.name: case for case in cases("deep")}
NET = TABLES["digits"]


def test_every_trained_strategy_without_stages_and_every_lossy_codec_has_a_case():
    from commsched.coding.registry import CODECS
    from commsched.exchange.registry import METHODS
    from commsched.program.registry import STRATEGIES
    from commsched.program.stages import PipelineStrategy
    from commsched.train.job import TRAINED

    flat = {name for name in TRAINED if not isinstance(STRATEGIES[name], PipelineStrategy)}
    exact = {name for name in flat if STRATEGIES[name].exact}  # they learn what sync does
    assert {case.strategy for case in KNOWN.values()} == flat - exact | {"sync"}
    lossy = [name for name, codec in CODECS.items() if not codec.lossless]
    lossy += [name for name, method in METHODS.items() if not method.lossless]
    stems = {name.partition(":")[0] for name in lossy}
    assert stems <= {name.partition(":")[0] for name in KNOWN}


@pytest.mark.parametrize("table", ["deep", "text"])
def test_every_strategy_with_stages_has_a_case_where_the_net_can_be_cut(table):
    from commsched.program.registry import STRATEGIES
    from commsched.train.job import TRAINED

    staged = {name for name in TRAINED if "stages" in STRATEGIES[name].parameters}
    assert staged <= {case.strategy for case in cases(table)}


def test_messages_are_trained_with_every_codec_that_they_may_have():
    from commsched.program.message_coding import MESSAGES

    coded = [case.params["messages"] for case in cases("messages") if case.strategy == "1f1b"]
    assert coded == list(MESSAGES.allowed)


def test_top_k_of_the_table_sends_as_much_as_the_spectrum():
    """What the paper holds its method against: the same bytes."""
    from commsched.simulate.engine import simulate

    sent = [
        simulate(plan_of(KNOWN[name], NET, 2, 2), 2).timeline().nbytes.sum()
        for name in ("fft:0.15", "topk:0.03125")
    ]
    assert sent[1] == pytest.approx(sent[0], rel=0.02)  # headers of 24 B a bucket


def test_a_plan_of_the_table_is_always_the_same():
    """So that its trainings are still those of the plan, on any machine."""
    assert len({plan_of(KNOWN["fft:0.15"], NET, 2, 2).hash for _ in range(2)}) == 1


@pytest.mark.by_day(1)
# The densities of a text are those of one version of Python.
@pytest.mark.parametrize("table", sorted(RECORDED.keys() - {"text", "gpt"}))
def test_recorded_trainings_are_those_of_the_plans_that_the_command_makes(table):
    recorded = convergence.read(RECORDED[table])
    plans = {case.name: case.trained.plan for case in recorded.cases}
    net = TABLES[table]
    made = {c.name: plan_of(c, net, 2, net.lanes).hash for c in cases(table)}
    assert plans
    assert plans.items() <= made.items()
    if table in ("digits", "deep"):  # all of whose cases were trained
        assert set(plans) == set(made)


@pytest.mark.by_day(0)
@pytest.mark.parametrize("table", ["digits", "deep"])
def test_recorded_state_is_what_strategies_count(table):
    recorded = convergence.read(RECORDED[table])
    net = TABLES[table]
    for case in cases(table):
        memory = STRATEGIES[case.strategy].memory(plan_of(case, net, 2, 2, net.scale))
        state = memory.total - memory.activations - memory.packets
        for times in recorded.case(case.name).times:
            assert times.state_bytes == pytest.approx(state), case.name


def test_the_page_has_the_recorded_tables():
    tables = {name: convergence.read(path) for name, path in RECORDED.items()}
    page = (ROOT / "docs" / "explanation" / "convergence.md").read_text()
    in_order = {name: tables[name] for name in TABLES if name in tables}
    assert markdown(in_order) in page, "run: python plots/convergence.py"


@pytest.fixture
def five_periods(monkeypatch):
    """The digits' table, whose trainings end sooner."""
    monkeypatch.setitem(TABLES, "digits", replace(NET, periods=5))


@pytest.mark.by_day(0)
@pytest.mark.usefixtures("five_periods")
def test_cases_that_are_trained_side_by_side_are_those_of_one_process_in_the_same_order(tmp_path):
    wanted = ConvergenceRequest(table="digits", names=("daso", "bf16", "dense"), folds=1, seeds=1)
    alone = bench.train(wanted, tmp_path / "alone", lambda line: None)
    with workers.processes(2) as beside:
        both = bench.train(wanted, tmp_path / "both", lambda line: None, beside)
    for table in (alone, both):
        assert [case.name for case in table.cases] == ["dense", "bf16", "daso"]
    ends = [[case.trained.trials[0].held_out for case in table.cases] for table in (alone, both)]
    assert ends[0] == ends[1]
    assert all(case.trained.trials[0].seconds > 0 for case in both.cases)


def test_seconds_of_a_case_count_its_rates_and_trainings_that_do_not_say():
    import msgspec

    case = trained("dense", 1.0)
    said, *rest = case.trained.trials
    trials = (msgspec.structs.replace(said, seconds=4.0), *rest)
    tried = [
        Tried(rate=rate, loss=1.0, accuracy=0.5, trainings=2, seconds=seconds)
        for rate, seconds in ((0.1, 9.0), (0.2, None))
    ]
    made = msgspec.structs.replace(case.trained, trials=trials)
    case = msgspec.structs.replace(case, trained=made, tuned=tuple(tried))
    assert seconds_of(case) == 3 * 4.0 + 9.0 + 2 * 4.0


@pytest.mark.by_day(0)
@pytest.mark.usefixtures("five_periods")
def test_a_training_that_is_made_again_has_the_numbers_of_the_first_and_says_its_seconds(tmp_path):
    import msgspec

    wanted = ConvergenceRequest(table="digits", names=("dense", "qsgd:4"), folds=1, seeds=1)
    table = bench.train(wanted, tmp_path, lambda line: None)
    silent = [without_seconds(case) for case in table.cases]
    ends = list(silent[1].trained.trials[0].held_out)
    ends[3] = msgspec.structs.replace(ends[3], loss=9.0)
    first = msgspec.structs.replace(silent[1].trained.trials[0], held_out=tuple(ends))
    changed = msgspec.structs.replace(silent[1].trained, trials=(first,))
    silent[1] = msgspec.structs.replace(silent[1], trained=changed)
    path = bench.path_of(wanted, tmp_path)
    convergence.write(path, msgspec.structs.replace(table, cases=tuple(silent)))

    said = []
    assert train_again(wanted, tmp_path, said.append) == 1
    assert said[0] == "dense: every number as recorded"
    assert said[1].startswith("qsgd:4: other numbers from step 88 on; loss at the end ")
    both = convergence.read(path)
    assert [case.trained for case in both.cases] == [case.trained for case in silent]
    assert all(seconds_of(case) == case.again.seconds > 0 for case in both.cases)
    row = next(x for x in markdown({"digits": both}).splitlines() if "2 of 2" in x)
    assert row == "| `digits` | 2 of 2 | 1 | 0, 0 | 0.00, 0.00 |"
    # A case that goes on where it was keeps the training.
    assert bench.train(wanted, tmp_path, said.append).cases == both.cases


def without_seconds(case: CaseResult) -> CaseResult:
    """The case as records from before the count of seconds have it."""
    import msgspec

    trials = [msgspec.structs.replace(each, seconds=None) for each in case.trained.trials]
    made = msgspec.structs.replace(case.trained, trials=tuple(trials))
    return msgspec.structs.replace(case, trained=made)


def test_a_changed_plan_is_not_made_again(tmp_path):
    wanted = ConvergenceRequest(table="digits", names=("dense",))
    table = ConvergenceTable(net=NET.name, ranks=4, steps=NET.steps, cases=(trained("dense", 1.0),))
    bench.path_of(wanted, tmp_path).parent.mkdir()
    convergence.write(bench.path_of(wanted, tmp_path), table)
    said = []
    assert train_again(wanted, tmp_path, said.append) == 1
    assert said == ["dense: its plan has changed, so that it is trained anew without --again"]
    assert convergence.read(bench.path_of(wanted, tmp_path)) == table


def trained(name: str, *losses: float, right: float = 0.5) -> CaseResult:
    """A case whose loss falls alike with every seed."""
    curve = tuple(
        HeldOutScore(steps=10 * (i + 1), loss=x, accuracy=right) for i, x in enumerate(losses)
    )
    found = tuple(
        OneTraining(fold=0, seed=seed, held_out=curve, sent_bytes=100.0 + seed) for seed in range(3)
    )
    made = Trainings(plan="0" * 64, made={}, trials=found)
    return CaseResult(name=name, family=name, strategy="sync", method="", trained=made)


def test_a_case_is_held_against_dense_training_by_training():
    dense, faster = trained("dense", 3.0, 2.0, 1.0), trained("x", 2.0, 1.0, 0.5, right=0.75)
    found = convergence.against(faster, dense)
    assert found is not None
    assert found.accuracy == (pytest.approx(0.25), pytest.approx(0.0))
    assert found.steps == 20
    assert convergence.against(trained("y", 3.0, 2.5, 2.0), dense).steps is None
    other = trained("z", 1.0)
    alone = Trainings(
        plan="",
        made={},
        trials=(
            OneTraining(fold=4, seed=9, held_out=other.trained.trials[0].held_out, sent_bytes=1.0),
        ),
    )
    assert (
        convergence.against(
            CaseResult(name="z", family="z", strategy="sync", method="", trained=alone), dense
        )
        is None
    )


def test_an_interval_holds_the_mean_of_19_samples_in_20():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(2000):
        found = mean(rng.normal(3.0, 2.0, 5).tolist())
        inside += abs(found.value - 3.0) <= found.half
    assert 0.935 < inside / 2000 < 0.965  # three standard deviations of 2000 coins


def test_quantiles_of_student_are_those_of_the_textbook():
    # Abramowitz & Stegun, table 26.10
    known = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 24: 2.064, 120: 1.980}
    for freedom, quantile in known.items():
        assert student(freedom) == pytest.approx(quantile, abs=5e-4)


def test_a_table_comes_back_as_it_was_and_of_other_steps_is_refused(tmp_path):
    wanted = ConvergenceRequest(table="digits")
    path = bench.path_of(wanted, tmp_path)
    path.parent.mkdir()
    table = ConvergenceTable(net=NET.name, ranks=4, steps=NET.steps, cases=(trained("dense", 1.0),))
    convergence.write(path, table.with_case(trained("x", 2.0)))
    assert [case.name for case in bench.kept(wanted, tmp_path).cases] == ["dense", "x"]
    with pytest.raises(CommschedError, match="its ranks is 4, not 8; give another folder"):
        bench.kept(ConvergenceRequest(table="digits", hosts=4), tmp_path)
    with pytest.raises(CommschedError, match="--case must be one of dense, "):
        bench.chosen(ConvergenceRequest(table="digits", names=("none",)))


def test_the_figure_names_every_case_and_family(tmp_path):
    cases = (trained("dense", 1.0), trained("fft:0.15", 2.0), trained("far", 2.0, right=0.25))
    table = ConvergenceTable(net=NET.name, ranks=4, steps=NET.steps, cases=cases)
    draw({"digits": table}, tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    for name in ("dense", "fft:0.15"):
        assert text.count(f">{name}<") == 2  # beside its point, and its family
    assert text.count(">far: 25%<") == 1  # drawn higher than it is
    with pytest.raises(CommschedError, match="cannot draw"):
        draw({"digits": table}, tmp_path / "x.gif")


def test_the_tuned_rate_has_the_least_loss_and_a_training_that_diverges_has_none():
    tried = [
        Tried(rate=r, loss=x, accuracy=0.5, trainings=1)
        for r, x in ((0.1, 2.0), (0.2, 1.0), (0.4, None))
    ]
    assert best(tried) == 0.2
    assert best([Tried(rate=r, loss=None, accuracy=0.1, trainings=1) for r in (0.4, 0.1)]) == 0.1


def test_rates_are_tried_until_the_best_one_has_a_worse_one_on_either_side(tmp_path):
    """A loss that is least at a rate of 0.3, far beyond the first five."""
    asked = []

    def train(words):
        rate, path = (words[words.index(flag) + 1] for flag in ("--rate", "--sweep"))
        asked.append(float(rate))
        curve = (HeldOutScore(steps=1, loss=abs(log(asked[-1] / 0.3)), accuracy=0.5),)
        one = OneTraining(fold=0, seed=0, held_out=curve, sent_bytes=1.0)
        write(Path(path), Trainings(plan="0" * 64, made={}, trials=(one,)))

    found = tuned([], 0.02, tmp_path / "case", 1, train)
    assert [one.rate for one in found] == [0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64]
    assert best(found) == 0.32
    assert beyond({one.rate: one for one in found}) is None
    asked.clear()
    assert tuned([], 0.02, tmp_path / "case", 1, train, found[:6]) == found
    assert asked == [0.32, 0.64]  # earlier rates are not tried again


@pytest.mark.parametrize("name", ["dense", "daso"])
def test_a_training_that_diverges_ends_no_other(name, tmp_path):
    plan, path = tmp_path / "plan.json", tmp_path / "trials.json"
    made = plan_of(KNOWN[name], NET, 2, 2)
    plan_file.write(plan, made)
    words = f"--net {NET.name} --strategy {KNOWN[name].strategy} --plan {plan} --sweep {path}"
    words += " --steps 22 --evaluate 8 --rate 1e30 --folds 1 --seeds 2 --together --force-size"
    assert main(["train", *words.split()]) == 0
    found = read(path).trials
    assert len(found) == 2
    for trial in found:
        assert [point.steps for point in trial.held_out] == [8, 16, 22]
        assert trial.end.loss is None
        # of the steps that were done, which are alike in the dense training
        assert name == "daso" or trial.sent_bytes == pytest.approx(2 * 3 / 4 * 4 * made.net.numel)


def test_one_process_trains_daso_to_the_end_of_an_epoch_only(tmp_path, capsys):
    plan, path = tmp_path / "plan.json", tmp_path / "trials.json"
    plan_file.write(plan, plan_of(KNOWN["daso"], NET, 2, 2))
    words = f"--net {NET.name} --plan {plan} --sweep {path} --steps 12 --together"
    assert main(["train", *words.split()]) == 2
    assert "--steps must be a multiple of 22, the plan's batches" in capsys.readouterr().err


def test_means_are_those_of_the_folds_and_seeds_that_are_asked_for(tmp_path, capsys):
    plan, path = tmp_path / "plan.json", tmp_path / "trials.json"
    plan_file.write(plan, plan_of(KNOWN["dense"], NET, 2, 2))
    words = f"--net {NET.name} --plan {plan} --sweep {path} --steps 3 --folds 1 --together --json"
    said = []
    for seeds in ("1", "2", "1"):
        assert main(["train", *words.split(), "--force-size", "--seeds", seeds]) == 0
        said.append(capsys.readouterr().out)
    assert '"trainings": 2' in said[1]
    assert said[2] == said[0] != said[1]


def test_a_case_that_learns_at_no_rate_ends():
    none = {
        rate: Tried(rate=rate, loss=None, accuracy=0.1, trainings=1) for rate in (0.1, 0.2, 0.4)
    }
    assert beyond(none) == 0.05
    assert beyond({rate: none[0.1] for rate in range(9)}) is None


def test_figures_of_rates_and_curves_show_the_tuned_cases(tmp_path):
    import msgspec

    tried = tuple(
        Tried(rate=r, loss=x, accuracy=0.5, trainings=1) for r, x in ((0.1, 2.0), (0.2, None))
    )
    tuned_case = msgspec.structs.replace(trained("daso", 2.0, 1.0), tuned=tried)
    cases = (tuned_case, trained("shadow", 1.0))
    table = ConvergenceTable(net=NET.name, ranks=4, steps=NET.steps, cases=cases)
    for draw_one in (draw_rates, draw_curves):
        draw_one({"digits": table}, tmp_path / "x.svg")
        text = (tmp_path / "x.svg").read_text()
        assert text.count(">daso<") == 1
        assert ">shadow<" not in text


def test_a_missed_bar_is_refuted_only_by_tuned_rates():
    import msgspec

    tried = (Tried(rate=0.1, loss=1.0, accuracy=0.5, trainings=1),)
    names = ("dense", "fft:0.15", "topk:0.03125")
    cases = [trained(name, 1.0, right=0.5 - 0.1 * place) for place, name in enumerate(names)]
    for tuned_cases, verdict in ((2, "missed, rates not tuned"), (3, "**refuted**")):
        some = [msgspec.structs.replace(case, tuned=tried) for case in cases[:tuned_cases]]
        table = ConvergenceTable(
            net=NET.name, ranks=4, steps=NET.steps, cases=(*some, *cases[tuned_cases:])
        )
        row = next(line for line in markdown({"digits": table}).splitlines() if "FFT" in line)
        assert row.endswith(f"| -10.00 +- 0.00 points, +10.00 +- 0.00 against top-k | {verdict} |")


def test_a_rate_is_chosen_without_a_look_at_what_is_held_out():
    data = DATA["digits"](0)
    inner = data.validation()
    assert len(inner.train) + len(inner.held_out) == len(data.train)
    assert len(inner.held_out) == pytest.approx(len(data.train) / 5, abs=1)
    seen = {row.tobytes() for part in inner for row in part.inputs}
    assert seen == {row.tobytes() for row in data.train.inputs}


@pytest.mark.parametrize("tune", [False, True])
def test_the_time_limit_ends_the_training_under_way(tune, tmp_path):
    said = []
    wanted = ConvergenceRequest(table="digits", names=("dense", "daso"), tune=tune, time_limit=0.2)
    assert bench.train(wanted, tmp_path, said.append).cases == ()
    assert said == ["2 of 2 cases are left; the same command goes on"]
