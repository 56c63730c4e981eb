"""Step times of the convergence table: the same compute in every case, and what launches took."""

from commsched.lab.convergence import table as convergence
from commsched.lab.convergence import trainings as bench
from commsched.lab.convergence.cases import cases, plan_of
from commsched.lab.convergence.step_times import Where, calibrated, elapsed, moving, timed
from commsched.lab.convergence.table import ConvergenceTable, Moved, StepTimes
from commsched.lab.convergence.tables import TABLES
from commsched.lab.convergence.targets import targets
from commsched.lab.convergence.trainings import ConvergenceRequest
from commsched.machine import file as machine_file
from commsched.program.model import Kind
from commsched.program.registry import STRATEGIES
from commsched.simulate.engine import simulate
from commsched.timeline import measure
from commsched.timeline.header import RunHeader
from commsched.timeline.model import Span, Timeline
from tests.support.pipeline_plans import shared_nic
from tests.support.small_plans import machine
from tests.test_convergence import trained

NAMES = ("dense", "1f1b", "local-greedy", "local-chunked", "samo-dense", "samo")


def simulated(
    folder, table: str, names: tuple[str, ...]
) -> tuple[ConvergenceTable, dict[str, float]]:
    """A table whose steps were simulated twice, and the compute of each case, s a rank and step."""
    found: dict[str, float] = {}
    net, wanted = TABLES[table], ConvergenceRequest(table=table, names=names)

    def execute(plan, stem, steps):
        done = simulate(plan, steps)
        spent = [
            float((p.end - p.start).sum())
            for p in done.placed
            if p.op.kind is Kind.COMPUTE and p.step > 0
        ]
        found[plan.hash] = sum(spent) / (plan.machine.size * (steps - 1))
        return done.timeline()

    path = bench.path_of(wanted, folder)
    path.parent.mkdir()
    cases = tuple(trained(name, 2.0, 1.0) for name in names)
    convergence.write(path, ConvergenceTable(net=net.name, ranks=4, steps=net.steps, cases=cases))
    on = shared_nic(machine(2, 2), 40e-9)  # 200 Mbit/s
    where = Where(machine=on, execute=execute, jitter=1e-9, name="simulated")
    done = timed(wanted, where, folder, lambda sentence: None)
    hashes = {case.times[0].plan: case.name for case in done.cases}
    return done, {hashes[key]: value for key, value in found.items()}


def test_a_launch_takes_its_coding_and_exchanges_without_waiting():
    spans = [
        Span(rank, stream, name, step, start, end, waited, 8)
        for step in (0, 1, 2)
        for rank, stream, name, start, end, waited in (
            (0, "encode", "b1/encode", 0.0, 1.0, 0.0),
            (0, "between", "b1/exchange", 1.0, 5.0, 2.0),
            (1, "between", "b1/exchange", 3.0, 5.0, 0.0),
            (0, "compute", "b1/apply", 5.0, 9.0, 0.0),
            (0, "between", "b10/exchange", 5.0, 9.0, 0.0),
        )
    ]
    made = Timeline.of(spans, header=RunHeader(), plan_hash="", ranks=4)
    assert moving(made, {"b1/encode", "b1/exchange", "b1/apply"}) == (1.0 + 2.0 + 2.0) / 2
    assert moving(made, {"b10/exchange"}) == 4.0
    assert moving(made, {"b2/exchange"}) == 0.0


def test_a_step_lasts_as_long_as_time_passes_where_ranks_are_slow_in_turn():
    long = ((0, 1.0, 3.0), (1, 1.0, 2.0), (0, 3.0, 4.0), (1, 2.0, 4.0))
    first = [Span(rank, "compute", "forward", 0, 0.0, 1.0, 0.0, 0) for rank in (0, 1)]
    later = [
        Span(rank, "compute", "forward", 1 + i // 2, start, end, 0.0, 0)
        for i, (rank, start, end) in enumerate(long)
    ]
    made = Timeline.of(first + later, header=RunHeader(), plan_hash="", ranks=2)
    assert elapsed(made) == 1.5
    assert measure.iteration_seconds(made)[1] == 2.0


def times(measured: float, moved: float, state: float = 100.0) -> StepTimes:
    """What matters of a case that was timed with the ratio of its target."""
    launch = Moved(
        launch="b0", tensors=("embedding.weight",), density=0.01, predicted=1.0, measured=moved
    )
    return StepTimes(
        ratio="samo" if state != 100.0 else "fft",
        value=2.0,
        scale=1.0,
        compute=1.0,
        jitter=0.1,
        testbed="2 hosts",
        plan="0",
        steps=40,
        predicted=1.0,
        measured=measured,
        low=measured,
        high=measured,
        sent_bytes=1.0,
        state_bytes=state,
        launches=(launch,),
    )


def test_targets_are_held_against_what_was_trained_and_timed():
    import msgspec

    def case(name: str, *losses: float, right: float = 0.5, **of):
        made = trained(name, *losses, right=right)
        return msgspec.structs.replace(made, times=(times(**of),)) if of else made

    cases = (
        case("dense", 3.0, 2.0, 1.0, measured=1.0, moved=1.0),
        case("daso", 2.0, 1.0, 0.5, measured=0.9, moved=0.1),
        case("fft:0.15", 1.0, right=0.496),
        case("topk:0.03125", 1.0, right=0.499),
        case("fft:0.15:forget", 1.0, right=0.499),
        case("topk:0.03125:forget", 1.0, right=0.49),
        case("samo-dense", 1.0, measured=1.0, moved=1.0, state=200.0),
        case("samo", 1.0, right=0.485, measured=1.0, moved=0.5, state=44.0),
        case("zen", 1.0, measured=1.0, moved=0.25),
        case("1f1b", 1.0, measured=1.0, moved=0.0),
        case("local-chunked", 1.5, measured=1.25, moved=0.0),
    )
    found = list(targets(ConvergenceTable(net="mlp", ranks=4, steps=30, cases=cases)))
    assert [(row.found, row.holds) for row in found] == [
        ("-0.40 +- 0.00 points, -0.30 +- 0.00 against top-k", False),  # top-k is better
        ("-0.10 +- 0.00 points, +0.90 +- 0.00 against top-k", True),
        ("40.0% less (predicted 33.3%)", True),  # two thirds of the steps
        ("-1.50 +- 0.00 points", False),
        ("78.0% less", True),
        ("50.0% less (predicted 0.0%)", True),
        ("0 nats apart at most", True),
        ("4.0 times less (predicted 1.0)", False),
        ("-25.0% less (predicted 0.0%); held-out loss +0.500 +- 0.000", False),
    ]
    assert not list(targets(ConvergenceTable(net="mlp", ranks=4, steps=30, cases=cases[:1])))


def test_a_testbed_is_calibrated_once_and_another_one_is_not_taken_for_it(tmp_path):
    path, asked = tmp_path / "machine.json", []

    def calibrate() -> None:
        asked.append(path)
        machine_file.write(path, machine(2, 2))

    for testbed, times in (("200mbit", 1), ("200mbit", 1), ("1gbit", 2), ("200mbit", 3)):
        assert calibrated(path, testbed, calibrate).name == testbed
        assert len(asked) == times


def test_the_memory_of_every_case_is_in_plain_numbers():
    for case in cases("digits"):
        plan = plan_of(case, TABLES["digits"], 2, 2)
        memory = STRATEGIES[plan.strategy].memory(plan)
        assert all(type(value) is float for value in memory), case.name
