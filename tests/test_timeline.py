"""Timelines keep every span through files and crashes, and say the same numbers on both sides."""

import copy
import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.timeline import Span, Timeline, measure, parts, read, write
from commsched.timeline.compare import compare
from commsched.timeline.intervals import Intervals, difference, intersection, union

STREAMS = ("compute", "encode", "inside", "between", "decode")
COLUMNS = ("rank", "stream", "name", "step", "start", "end", "waited", "nbytes")

words = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8)
moments = st.floats(-10, 1000, allow_subnormal=False)


@st.composite
def timelines(draw, ranks=4, most=30, whole=False):
    """Any timeline; with `whole`, times are whole numbers, so that sums are exact."""
    count = st.integers(0, 12).map(float)
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(0, ranks - 1),
                st.sampled_from(STREAMS),
                draw(st.just(st.sampled_from("abcd"))) if whole else words,
                st.integers(0, 3),
                count if whole else moments,
                count if whole else st.floats(0, 10),
                st.floats(0, 1),
                st.integers(0, 2**50),
            ),
            min_size=1 if whole else 0,
            max_size=most,
            unique_by=lambda row: (row[0], row[2], row[3]),
        )
    )
    spans = [Span(r, s, n, k, a, a + d, w * d, b) for r, s, n, k, a, d, w, b in rows]
    return Timeline.of(
        spans,
        kind=draw(st.sampled_from(["predicted", "measured"])),
        plan_hash=draw(words),
        ranks=ranks,
        streams=STREAMS,
        clock_uncertainty=draw(st.floats(0, 1)),
        meta={"net": "n", "deep": {"list": [1, None, 2.5, "é"]}},
    )


def of(*spans, **fields):
    fields = {"kind": "measured", "plan_hash": "h", "ranks": 4, "streams": STREAMS} | fields
    return Timeline.of([Span(*s) for s in spans], **fields)


def assert_same(a, b):
    for field in ("kind", "plan_hash", "ranks", "streams", "names", "meta"):
        assert getattr(a, field) == getattr(b, field)
    assert abs(a.clock_uncertainty - b.clock_uncertainty) < 1e-9
    for column in COLUMNS:
        np.testing.assert_allclose(getattr(a, column), getattr(b, column), rtol=0, atol=1e-9)


# files


@given(t=timelines())
def test_reading_gives_what_was_written(t, tmp_path_factory):
    folder = tmp_path_factory.mktemp("t")
    write(folder / "a.json", t)
    found = read(folder / "a.json")
    assert_same(t, found)
    write(folder / "b.json", found)
    assert (folder / "a.json").read_bytes() == (folder / "b.json").read_bytes()


@given(t=timelines())
def test_a_file_that_others_formatted_reads_the_same(t, tmp_path_factory):
    path = tmp_path_factory.mktemp("t") / "a.json"
    write(path, t)
    ours = read(path)
    path.write_text(json.dumps(json.loads(path.read_text()), indent=2, sort_keys=True))
    assert_same(ours, read(path))


@given(t=timelines(whole=True))
def test_spans_that_touch_still_touch_in_the_file(t, tmp_path_factory):
    path = tmp_path_factory.mktemp("t") / "a.json"
    third = t.select(np.arange(len(t)))
    third.start[:], third.end[:] = t.start / 3, t.end / 3
    third.waited[:] = 0
    write(path, third)
    found = read(path)
    touching = t.end[:, None] == t.start[None]
    np.testing.assert_array_equal(touching, found.end[:, None] == found.start[None])


def test_the_file_is_a_trace_that_viewers_open(tmp_path):
    t = of((2, "inside", "b0/exchange", 1, 0.5, 0.75, 0.125, 64), meta={"host": "a"})
    write(tmp_path / "t.json", t)
    data = json.loads((tmp_path / "t.json").read_text())
    assert data["displayTimeUnit"] == "ms"
    *named, span = data["traceEvents"]
    assert span == {
        "ph": "X",
        "name": "b0/exchange",
        "pid": 2,
        "tid": 2,
        "ts": 5e5,
        "dur": 2.5e5,
        "args": {"step": 1, "waited_us": 1.25e5, "nbytes": 64},
    }
    assert all(event["ph"] == "M" and event["pid"] == 2 for event in named)
    assert [event["args"] for event in named if event["name"].endswith("_name")] == [
        {"name": "rank 2"},
        {"name": "inside"},
    ]


def _paths(tree, at=()):
    """Every place in a JSON tree."""
    yield at
    tree = dict(enumerate(tree)) if isinstance(tree, list) else tree
    for key, value in tree.items() if isinstance(tree, dict) else ():
        yield from _paths(value, (*at, key))


junk = st.sampled_from(
    [None, True, -1, 0, 1.5, 1e300, -1e300, 2**31, 2**64, 10**400, "", "x", "\ud800", "\n", [], {}]
)


def _read_or_refuse(path):
    """Read and use a file that may be wrong: one clear error is right, any other is not."""
    try:
        t = read(path)
        if len(t):
            compare(t, t).table()
            measure.overlaps(measure.waiting_filled(t))
    except CommschedError as error:
        assert str(error)
        assert "\n" not in str(error)


@settings(max_examples=200)
@given(t=timelines(most=4), data=st.data())
def test_a_file_with_a_wrong_value_is_refused_in_one_sentence(t, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("t") / "a.json"
    write(path, t)
    tree = json.loads(path.read_text())
    *way, last = data.draw(st.sampled_from([p for p in _paths(tree) if p]))
    place = tree
    for key in way:
        place = place[key]
    if data.draw(st.booleans()):
        place[last] = data.draw(junk)
    elif isinstance(place, dict):
        place[data.draw(st.sampled_from(["new", last + last]))] = place.pop(last)
    else:
        place.append(copy.deepcopy(place[last]))
    path.write_text(json.dumps(tree))
    _read_or_refuse(path)


@given(t=timelines(most=4), at=st.floats(0, 1), cut=st.integers(0, 9), new=st.binary(max_size=9))
def test_a_damaged_file_is_refused_in_one_sentence(t, at, cut, new, tmp_path_factory):
    path = tmp_path_factory.mktemp("t") / "a.json"
    write(path, t)
    content = path.read_bytes()
    place = int(at * len(content))
    path.write_bytes(content[:place] + new + content[place + cut :])
    _read_or_refuse(path)


GOOD = '"name":"x","pid":1,"tid":0,"ts":1.0,"dur":2.0,"args":{"step":0,"waited_us":0.0,"nbytes":0.0}'


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"dur":2.0', '"dur":-2.0', "`float` >= 0"),
        ('"pid":1,"tid":0,"ts"', '"pid":4,"tid":0,"ts"', "rank 4 is not one of the 4 ranks"),
        ('"tid":0,"ts"', '"tid":5,"ts"', "stream 5 is not in the table of 5 streams"),
        ('"ts":1.0', '"ts":NaN', "NaN is not a number"),
        ('"ts":1.0', '"ts":1e999', "out of range"),
        ('"ts":1.0', '"ts":1.0,"ts":1.0', "key 'ts' stands twice"),
        ('"ph":"X"', '"ph":"B"', "'B'"),
        ('"name":"x","pid"', '"name":"y","pid"', "operation 'y' is not in the table"),
        ('"names":["x"]', '"names":["x","x"]', "the table of names has 'x' twice"),
        ('"waited_us":0.0', '"waited_us":3.0', "outside 0 and its own duration"),
        ('"step":0', '"step":0.5', "expected `int`"),
        ('"nbytes":0.0', '"nbytes":-1', ">= 0"),
        ('"nbytes":0.0', '"nbytes":0.0,"more":1', "unknown field `more`"),
        ('"format":"commsched-timeline/1"', '"format":"commsched-timeline/9"', "timeline/9"),
        ('"format":"commsched-timeline/1",', "", "not a timeline of commsched"),
        (f'{{"ph":"X",{GOOD}}}', f'{{"ph":"X",{GOOD}}},{{"ph":"X",{GOOD}}}', "is there twice"),
    ],
)
def test_a_bad_value_is_named(old, new, complaint, tmp_path):
    path = tmp_path / "t.json"
    write(path, of((1, "compute", "x", 0, 1e-6, 3e-6, 0, 0)))
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    with pytest.raises(CommschedError, match=re.escape(complaint)) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))


def test_a_timeline_that_no_reader_would_take_is_not_written(tmp_path):
    twice = of(*[(0, "compute", "x", 0, 0.0, 1.0, 0.0, 0)] * 2)
    with pytest.raises(CommschedError, match="not written: rank 0, step 0, 'x': is there twice"):
        write(tmp_path / "t.json", twice)
    assert not list(tmp_path.iterdir())


# parts


def _write_parts(path, t, ranks=None, offsets=None):
    """Write what the ranks of `t` would; the clock of each is behind by its offset."""
    for rank in range(t.ranks) if ranks is None else ranks:
        offset = offsets[rank] if offsets else 0.0
        header = {
            "plan_hash": t.plan_hash,
            "ranks": t.ranks,
            "clock_offset_us": offset * 1e6,
            "clock_uncertainty_us": t.clock_uncertainty * 1e6,
            "t0": 100.0,
            "streams": t.streams,
            "names": t.names,
            "meta": t.meta,
        }
        with parts.PartWriter(path, rank, header) as part:
            for span in t.select(t.rank == rank):
                shift = 100.0 - offset
                part.append([span._replace(start=span.start + shift, end=span.end + shift)])


@given(t=timelines(), seed=st.integers(0, 9))
def test_parts_merge_into_the_timeline_on_the_first_ranks_clock(t, seed, tmp_path_factory):
    path = tmp_path_factory.mktemp("t") / "[1] measured.json"
    _write_parts(path, t, offsets=np.random.default_rng(seed).normal(0, 3, 4).tolist())
    order = np.argsort(t.rank, kind="stable")
    found = parts.read_parts(path)
    assert found.kind == "measured"
    for column in COLUMNS:
        np.testing.assert_allclose(
            getattr(found, column), getattr(t, column)[order], rtol=0, atol=1e-9
        )
    assert (found.names, found.streams, found.meta) == (t.names, t.streams, t.meta)
    parts.remove_parts(path)
    assert not list(path.parent.iterdir())


@given(cut=st.integers(1, 400))
def test_a_crash_in_the_middle_of_a_line_loses_that_line_only(cut, tmp_path_factory):
    path = tmp_path_factory.mktemp("t") / "measured.json"
    t = of(*[(r, "compute", f"ä{i}", 0, i, i + 1, 0.0, 0) for r in range(4) for i in range(9)])
    _write_parts(path, t)
    torn = parts.part_path(path, 2)
    content = torn.read_bytes()
    kept = content[:-cut]
    torn.write_bytes(kept)
    found = read(path)
    whole_lines = kept.count(b"\n")
    assert (found.rank == 2).sum() == max(whole_lines - 1, 0)
    assert all((found.rank == r).sum() == 9 for r in (0, 1, 3))
    assert found.warnings[0].endswith("the run did not end; merged from what its ranks left")
    about_torn = "rank 2: the last line of its part is torn and was left out"
    assert (about_torn in found.warnings) == (not kept.endswith(b"\n") and bool(kept))
    assert ("rank 2 of 4 left no spans" in found.warnings) == (whole_lines == 0)


def test_missing_ranks_are_reported_and_the_others_compared(tmp_path):
    t = of(*[(r, "compute", "x", s, s, s + 0.5, 0.0, 0) for r in range(4) for s in range(3)])
    _write_parts(tmp_path / "m.json", t, ranks=[1, 2])
    found = read(tmp_path / "m.json")
    assert "ranks 0, 3 of 4 left no spans" in found.warnings
    assert "warning: ranks 0, 3 of 4 left no spans" in compare(t, found).table()
    write(tmp_path / "m.json", t)
    parts.remove_parts(tmp_path / "m.json")
    assert read(tmp_path / "m.json").warnings == ()


def test_parts_of_different_runs_are_not_mixed(tmp_path):
    a, b = (of((r, "compute", "x", 0, 0.0, 1.0, 0.0, 0), plan_hash=f"h{r}") for r in (0, 1))
    _write_parts(tmp_path / "m.json", a, ranks=[0])
    _write_parts(tmp_path / "m.json", b, ranks=[1])
    with pytest.raises(CommschedError, match="rank 0 and 1 are of different runs: plan_hash is"):
        read(tmp_path / "m.json")


@pytest.mark.parametrize(
    "line", ["", "[]", '["compute","x",0,0.0,NaN,0.0,0]', "[[[[", "\ud800", '"x"', "\x00" * 99]
)
def test_a_part_with_a_bad_line_in_its_middle_is_refused(line, tmp_path):
    t = of((0, "compute", "x", 0, 0.0, 1.0, 0.0, 0), ranks=1)
    _write_parts(tmp_path / "m.json", t)
    part = parts.part_path(tmp_path / "m.json", 0)
    head, span, _ = part.read_bytes().split(b"\n")
    part.write_bytes(b"\n".join([head, line.encode("utf-8", "surrogatepass"), span, b""]))
    with pytest.raises(CommschedError, match=r"m.json.rank0.jsonl, line 2: not a span"):
        read(tmp_path / "m.json")


@given(at=st.floats(0, 1), new=st.binary(max_size=9))
def test_a_damaged_part_is_refused_in_one_sentence(at, new, tmp_path_factory):
    path = tmp_path_factory.mktemp("t") / "m.json"
    _write_parts(path, of((0, "compute", "x", 0, 0.0, 1.0, 0.0, 0), ranks=1))
    part = parts.part_path(path, 0)
    content = part.read_bytes()
    place = int(at * len(content))
    part.write_bytes(content[:place] + new + content[place + len(new) :])
    _read_or_refuse(path)


def test_no_file_and_no_parts_is_said(tmp_path):
    with pytest.raises(CommschedError, match="cannot be read"):
        read(tmp_path / "m.json")


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


@given(t=timelines(whole=True))
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
            first = [s.start for s in of_step if s.stream == "compute"] or [s.start for s in of_step]
            if first:
                begins[column] = max([min(first), *begins.values()])
        ends = [*list(begins.values())[1:], over]
        for (column, begin), end in zip(begins.items(), ends, strict=True):
            cells = slice(int(begin), int(end))
            want[0, row, column] = (communication & ~compute)[cells].sum()
            want[1, row, column] = (communication & compute)[cells].sum()
    np.testing.assert_array_equal(measure.exposed(t), want[0])
    np.testing.assert_array_equal(measure.hidden(t), want[1])


@given(t=timelines(whole=True))
def test_overlaps_are_found_if_and_only_if_there_are_any(t):
    def overlap(a, b):
        later, earlier = (a, b) if (a.start, a.end) > (b.start, b.end) else (b, a)
        same = (a.rank, a.stream) == (b.rank, b.stream)
        return same and later.start < earlier.end

    spans = list(t)
    some = any(overlap(a, b) for i, a in enumerate(spans) for b in spans[:i])
    found = measure.overlaps(t)
    assert bool(found) == some
    assert all(overlap(a, b) for a, b in found)


@given(t=timelines(whole=True))
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


def two_steps(speed=1.0, **fields):
    """Two ranks, two steps of 4 s: 3 s of compute, an exchange of 2 s for which rank 1 waits."""
    spans = []
    for step in range(3):
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
    t = two_steps()
    np.testing.assert_array_equal(measure.iteration_seconds(t), [4, 4, 4])
    np.testing.assert_array_equal(measure.exposed(t), np.ones((2, 3)))
    np.testing.assert_array_equal(measure.hidden(t), [[1, 1, 1], [2, 2, 2]])
    np.testing.assert_array_equal(measure.busy(t)[0], [[3, 0, 0, 2, 0]] * 3)
    np.testing.assert_array_equal(measure.waiting_filled(t).waited, t.waited)
    assert measure.overlaps(t) == []


def test_a_rank_that_was_lost_does_not_change_the_others():
    t = two_steps()
    lost = t.select((t.rank == 0) | (t.step == 0))
    np.testing.assert_array_equal(measure.iteration_seconds(lost), [4, 4, 4])


# comparison


@given(t=timelines(whole=True), factor=st.sampled_from([0.5, 1.0, 2.0]))
def test_a_slower_copy_is_slower_by_that_factor_everywhere(t, factor):
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
    extra = [(0, "inside", "only/here", 2, 9.0, 9.5, 0.0, 0)]
    slow = two_steps(kind="predicted", speed=1.25)
    measured = of(*two_steps(), *extra, ranks=2, clock_uncertainty=2.5, meta={"warnings": ["w"]})
    assert compare(slow, measured).table(limit=1) == """\
plan h, 2 ranks, medians of 2 predicted and 2 measured steps

                       predicted ms  measured ms  difference ms    error
iteration                  5000.000     4000.000      +1000.000   +25.0%
exposed communication      1250.000     1000.000       +250.000   +25.0%
hidden communication       1875.000     1500.000       +375.000   +25.0%
busy: compute              3750.000     3000.000       +750.000   +25.0%
busy: encode                  0.000        0.000         +0.000        -
busy: inside                  0.000      125.000       -125.000  -100.0%
busy: between              3125.000     2500.000       +625.000   +25.0%
busy: decode                  0.000        0.000         +0.000        -

operation  stream   predicted ms  measured ms  difference ms   error  pred. wait ms  meas. wait ms  pred. size  meas. size
forward/a  compute      3750.000     3000.000       +750.000  +25.0%          0.000          0.000         0 B         0 B
... and 1 more with smaller differences

only measured: only/here

* shorter than the clocks' uncertainty of 2.5 s

warning: w"""


def test_only_the_same_plan_and_ranks_compare():
    t = two_steps()
    with pytest.raises(CommschedError, match="different plans: predicted 'other', measured 'h'"):
        compare(two_steps(plan_hash="other"), t)
    with pytest.raises(CommschedError, match="3 ranks \\(predicted\\) and 2"):
        compare(two_steps(ranks=3), t)
    with pytest.raises(CommschedError, match="the measured timeline has no spans"):
        compare(t, t.select(t.step > 9))


def test_the_command_fails_above_the_error_that_is_allowed(tmp_path, capsys):
    files = [str(tmp_path / "p.json"), str(tmp_path / "m.json")]
    write(files[0], two_steps(kind="predicted", speed=1.25))
    write(files[1], two_steps())
    assert main(["compare", *files, "--fail-above", "25.1%"]) == 0
    assert "iteration" in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        main(["compare", *files, "--json", "--fail-above", "24.9%"])
    assert caught.value.code == 1
    data = json.loads(capsys.readouterr().out)
    assert data["iteration"]["ratio"] == pytest.approx(1.25, rel=1e-9)  # whole ns in the file
    assert data["operations"][1]["predicted_nbytes"] == 800
    for wrong in ("15", "0.15", "x%", "-1%", "nan%"):
        with pytest.raises(SystemExit):
            main(["compare", *files, f"--fail-above={wrong}"])
        assert "must be a percentage such as 15%" in capsys.readouterr().err
