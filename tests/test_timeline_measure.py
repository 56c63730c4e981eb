"""What timelines measure and how they compare: laws, grids to count on, and runs by hand."""

import json

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.timeline import measure
from commsched.timeline.compare import compare
from commsched.timeline.cycles import totals
from commsched.timeline.file import write
from commsched.timeline.header import Predicted, RunHeader
from commsched.timeline.intervals import Intervals, difference, intersection, union
from commsched.timeline.model import Span, Timeline
from commsched.timeline.report import comparison_table
from commsched.timeline.totals import totals_data, totals_lines
from tests.support.overlaps import overlaps

STREAMS = ("compute", "encode", "inside", "between", "decode")


def of(*spans, **fields):
    fields = {"header": RunHeader(), "plan_hash": "h", "ranks": 4, "streams": STREAMS} | fields
    return Timeline.of([Span(*s) for s in spans], **fields)


def _build(rows):
    return of(*[(r, s, n, k, a, a + d, w * d, b) for r, s, n, k, a, d, w, b in rows])


whole = st.integers(0, 12).map(float)  # so that sums are exact
timelines = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(STREAMS),
        st.sampled_from("abcd"),
        st.integers(0, 3),
        whole,
        whole,
        st.floats(0, 1),
        st.integers(0, 1000),
    ),
    min_size=1,
    max_size=30,
    unique_by=lambda row: (row[0], row[2], row[3]),
).map(_build)


# intervals, against a grid of unit cells

GROUPS, CELLS = 3, 20
sets = st.lists(
    st.tuples(st.integers(0, GROUPS - 1), st.integers(0, CELLS), st.integers(0, CELLS)),
    max_size=12,
).map(lambda rows: [(g, min(a, b), max(a, b)) for g, a, b in rows])


def columns(rows):
    group, start, end = np.array(rows, float).reshape(-1, 3).T
    return Intervals(group.astype(np.int64), start, end)


def grid(rows):
    cells = np.zeros((GROUPS, CELLS), bool)
    for group, start, end in zip(*rows, strict=True):
        cells[int(group), int(start) : int(end)] = True
    return cells


def test_intervals_of_two_ranks_that_touch_stay_two():
    touching = Intervals(np.array([0, 1]), np.array([0.0, 1.0]), np.array([1.0, 2.0]))
    assert [column.tolist() for column in union(touching)] == [[0, 1], [0.0, 1.0], [1.0, 2.0]]


@given(a=sets, b=sets)
def test_interval_arithmetic_is_set_arithmetic(a, b):
    a, b = columns(a), columns(b)
    cases = {
        union: (union(a), grid(a)),
        intersection: (intersection(a, b), grid(a) & grid(b)),
        difference: (difference(a, b), grid(a) & ~grid(b)),
    }
    for found, want in cases.values():
        np.testing.assert_array_equal(grid(found), want)
        assert (found.end - found.start).sum() == want.sum()
        order = np.lexsort((found.start, found.group))
        np.testing.assert_array_equal(order, np.arange(len(order)))
        apart = (found.group[1:] != found.group[:-1]) | (found.start[1:] > found.end[:-1])
        assert apart.all()  # disjoint, and joined where they touch


# measures


@given(t=timelines)
def test_exposed_and_hidden_are_what_a_grid_counts(t):
    seen, steps = measure.ranks_seen(t).tolist(), measure.steps(t).tolist()
    want = np.zeros((2, len(seen), len(steps)))
    over = int(t.end.max())
    for row, rank in enumerate(seen):
        mine = [s for s in t if s.rank == rank]
        compute, communication = np.zeros(over, bool), np.zeros(over, bool)
        for s in mine:
            kind = {"compute": compute, "inside": communication, "between": communication}
            kind.get(s.stream, np.zeros(over, bool))[int(s.start) : int(s.end)] = True
        begins = {}  # column -> the step's start, none before that of an earlier step
        for column, step in enumerate(steps):
            of_step = [s for s in mine if s.step == step]
            first = [s.start for s in of_step if s.stream == "compute"] or [
                s.start for s in of_step
            ]
            if first:
                begins[column] = max([min(first), *begins.values()])
        ends = [*list(begins.values())[1:], over]
        for (column, begin), end in zip(begins.items(), ends, strict=True):
            cells = slice(int(begin), int(end))
            want[0, row, column] = (communication & ~compute)[cells].sum()
            want[1, row, column] = (communication & compute)[cells].sum()
    np.testing.assert_array_equal(measure.exposed(t), want[0])
    np.testing.assert_array_equal(measure.hidden(t), want[1])


@given(t=timelines)
def test_overlaps_are_found_if_and_only_if_there_are_any(t):
    def overlap(a, b):
        later, earlier = (a, b) if (a.start, a.end) > (b.start, b.end) else (b, a)
        same = (a.rank, a.stream) == (b.rank, b.stream)
        return same and later.start < earlier.end

    spans = list(t)
    some = any(overlap(a, b) for i, a in enumerate(spans) for b in spans[:i])
    found = overlaps(t)
    assert bool(found) == some
    assert all(overlap(a, b) for a, b in found)


@given(t=timelines)
def test_nobody_waits_longer_than_until_the_last_one_comes(t):
    filled = measure.waiting_filled(t)
    for before, after in zip(t, filled, strict=True):
        same = [s for s in t if (s.name, s.step) == (before.name, before.step)]
        latest = max(
            (s.start for s in same if measure.is_communication(s.stream)), default=before.start
        )
        want = max(min(before.end, latest) - before.start, 0)
        if not measure.is_communication(before.stream):
            want = before.waited
        assert after == before._replace(waited=want)


def four_steps(speed=1.0, **fields):
    """Two ranks, four steps of 4 s: 3 s of compute, an exchange of 2 s for which rank 1 waits."""
    spans = []
    for step in range(4):
        for rank in range(2):
            begin = 4.0 * step
            ready = begin + 2 - rank
            spans += [
                (rank, "compute", "forward/a", step, begin, begin + 3, 0.0, 0),
                (rank, "between", "b0/exchange", step, ready, begin + 4, float(rank), 800),
            ]
    spans = [(r, s, n, k, a * speed, b * speed, w * speed, m) for r, s, n, k, a, b, w, m in spans]
    return of(*spans, **{"ranks": 2} | fields)


def test_a_small_run_by_hand():
    t = four_steps()
    np.testing.assert_array_equal(measure.iteration_seconds(t), [4, 4, 4, np.nan])
    np.testing.assert_array_equal(measure.exposed(t), np.ones((2, 4)))
    np.testing.assert_array_equal(measure.hidden(t), [[1] * 4, [2] * 4])
    np.testing.assert_array_equal(measure.busy(t)[0], [[3, 0, 0, 2, 0]] * 4)
    np.testing.assert_array_equal(measure.waiting_filled(t).waited, t.waited)
    assert overlaps(t) == []


def test_a_rank_that_was_lost_does_not_change_the_others():
    t = four_steps()
    lost = t.select((t.rank == 0) | (t.step == 0))
    np.testing.assert_array_equal(measure.iteration_seconds(lost), [4, 4, 4, np.nan])


# comparison


@given(t=timelines, factor=st.sampled_from([0.5, 1.0, 2.0]))
def test_a_slower_copy_is_slower_by_that_factor_everywhere(t, factor):
    assume(len(measure.steps(t)) > 1)
    slow = t.select(np.arange(len(t)))
    for column in ("start", "end", "waited"):
        getattr(slow, column)[:] *= factor
    c = compare(slow, t)
    pairs = [c.iteration, c.exposed, c.hidden, *(pair for _, pair in c.streams)]
    for pair in (*pairs, *(o.seconds for o in c.operations), *(o.waited for o in c.operations)):
        assert pair.predicted == pytest.approx(factor * pair.measured, rel=1e-12, abs=1e-15)
    assert all(o.nbytes.difference == 0 for o in c.operations)
    assert c.only_predicted == c.only_measured == ()


def test_golden_table():
    extra = [(0, "inside", "only/here", 2, 9.0, 12.0, 0.0, 0)]
    slow = four_steps(header=Predicted(), speed=1.25)
    measured = of(
        *four_steps(), *extra, ranks=2, clock_uncertainty=2.75, header=RunHeader(warnings=("w",))
    )
    c = compare(slow, measured)
    assert (
        comparison_table(c, limit=0)
        == """\
plan h, 2 ranks
predicted: median of 2 of 4 steps; 800 B sent per rank and step
measured: mean of 2 of 4 steps, whose operations do not repeat; 800 B sent per rank and step

per step, in ms        predicted  measured  difference    error
iteration               5000.000  4000.000   +1000.000   +25.0%
exposed communication   1250.000  1000.000    +250.000   +25.0%
hidden communication    1875.000  1750.000    +125.000    +7.1%
busy: compute           3750.000  3000.000    +750.000   +25.0%
busy: encode               0.000     0.000      +0.000        -
busy: inside               0.000   750.000    -750.000  -100.0%
busy: between           3125.000  2500.000    +625.000   +25.0%
busy: decode               0.000     0.000      +0.000        -

p10 to p90 of the prediction, 5 s to 5 s, does not hold the measured iteration;
that is the spread of the steps only: the machine file has no held-out errors

why, in ms     difference  of the iteration
compute drift      +0.000             +0.0%
latency            +0.000             +0.0%
bandwidth        +500.000            +12.5%
codec              +0.000             +0.0%
stragglers       +250.000             +6.2%
lost overlap     +250.000             +6.2%
sum             +1000.000            +25.0%
along the predicted chain of rank 1

2 operations compared

only measured: only/here

* shorter than the clocks' uncertainty of 2.75 s

warning: w"""
    )
    lines = comparison_table(c, limit=1).split("\n")
    at = next(i for i, line in enumerate(lines) if line.startswith("why, by operation"))
    row = "b0/exchange . . +500.000 . +250.000 +250.000 +1000.000"
    assert lines[at + 1].split() == row.split()
    at = next(i for i, line in enumerate(lines) if line.startswith("operation"))
    assert lines[at].split("  ")[0] == "operation, in ms"
    row = "forward/a compute 3750.000 3000.000 +750.000 +25.0% 0.000 0.000 0 B 0 B"
    assert lines[at + 1].split() == row.split()
    assert lines[at + 2] == "... and 1 more with smaller differences"
    exchange = comparison_table(c).split("\n")[at + 2]
    row = "b0/exchange* between 3125.000 2500.000 +625.000 +25.0% 625.000 500.000 800 B 800 B"
    assert exchange.split() == row.split()


def test_only_the_same_plan_and_ranks_compare():
    t = four_steps()
    with pytest.raises(CommschedError, match="different plans: predicted 'other', measured 'h'"):
        compare(four_steps(header=Predicted(), plan_hash="other"), t)
    with pytest.raises(CommschedError, match="3 ranks \\(predicted\\) and 2"):
        compare(four_steps(header=Predicted(), ranks=3), t)
    with pytest.raises(CommschedError, match="the measured timeline has no spans"):
        compare(four_steps(header=Predicted()), t.select(t.step > 9))


@pytest.mark.parametrize("header", [Predicted(), RunHeader()])
def test_two_timelines_of_one_kind_are_the_first_and_the_second(header):
    one = four_steps(header=header)
    text = comparison_table(compare(one, one))
    assert [line for line in text.splitlines() if line.startswith(("first: ", "second: "))]
    assert ("predicted" in text, "measured" in text) == (False, False)


@pytest.mark.parametrize(("steps", "left"), [(2, "the last"), (3, "the first and the last")])
def test_the_steps_that_are_left_out_are_named(steps, left):
    t = four_steps()
    (line, *_) = totals_lines(totals_data(totals(t.select(t.step < steps))))
    assert line.endswith(f"(median of 1 of {steps} steps, without {left})")


def test_the_command_fails_above_the_error_that_is_allowed(tmp_path, capsys):
    files = [str(tmp_path / "p.json"), str(tmp_path / "m.json")]
    write(files[0], four_steps(header=Predicted(), speed=1.25))
    write(files[1], four_steps())
    assert main(["compare", *files, "--fail-above", "25.1%"]) == 0
    assert "iteration" in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        main(["compare", *files, "--json", "--fail-above", "24.9%"])
    assert caught.value.code == 1
    data = json.loads(capsys.readouterr().out)
    assert data["iteration_median"]["ratio"] == pytest.approx(1.25, rel=1e-9)  # whole ns
    assert data["operations"][1]["predicted_bytes"] == 800
    assert main(["compare", *files, "--fail-above", "25.1"]) == 0
    capsys.readouterr()
    for wrong, why in (
        ("0.15", "--fail-above 0.15 would be 0.15%: write 15%, or 0.15% if you mean it"),
        ("nan%", "--fail-above is a share, such as 5%; got 'nan%'"),
        ("x%", "--fail-above is a share, such as 5%; got 'x%'"),
        ("-1%", "--fail-above must be finite and at least 0%; got -1%"),
    ):
        assert main(["compare", *files, f"--fail-above={wrong}"]) == 2
        assert why in capsys.readouterr().err
