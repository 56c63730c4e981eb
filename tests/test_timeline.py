"""Timelines keep every span through files and crashes, and bad files are refused."""

import copy
import json
import math
import os
import re
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsched.errors import CommschedError
from commsched.timeline import measure, parts
from commsched.timeline.compare import compare
from commsched.timeline.file import read, write
from commsched.timeline.header import Fallback, Predicted, RunHeader, Switch, Verified
from commsched.timeline.model import Span, Timeline
from commsched.timeline.report import comparison_table
from tests.support import sampling
from tests.support.overlaps import overlaps

STREAMS = ("compute", "encode", "inside", "between", "decode")
COLUMNS = ("rank", "stream", "name", "step", "start", "end", "waited", "nbytes", "decided")

HEADERS = (
    Predicted(net="n", steps=3, after={"a": (("b", 1),)}, exchanges={"x": (1.5, 0.0)}),
    RunHeader(
        machine="é",
        hosts=("a", "b"),
        placement=(),
        decisions={"0/b0/switch/decide": 0.5, "1/epoch/decide": None},
        verified=Verified({"ring+dense": 0.25}),
        fallbacks=(Fallback(launches=("b0",), dense=("ring+dense",), since=2),),
        switches=(Switch(step=2, plan="h", why="w", ratio=2.5),),
    ),
)
words = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8)
moments = st.floats(-10, 1000, allow_subnormal=False)


@st.composite
def timelines(draw, most=30):
    """Any timeline of four ranks."""
    row = st.tuples(
        st.integers(0, 3),
        st.sampled_from(STREAMS),
        words,
        st.integers(0, 3),
        moments,
        st.floats(0, 10),
        st.floats(0, 1),
        st.integers(0, 2**50),
        st.none() | st.floats(-9, 9) | st.just(math.inf),
    )
    rows = draw(st.lists(row, max_size=most, unique_by=lambda row: (row[0], row[2], row[3])))
    return of(
        *[(r, s, n, k, a, a + d, w * d, b, 0.0, v) for r, s, n, k, a, d, w, b, v in rows],
        header=draw(st.sampled_from(HEADERS)),
        plan_hash=draw(words),
        clock_uncertainty=draw(st.floats(0, 1)),
    )


def of(*spans, **fields):
    fields = {"header": RunHeader(), "plan_hash": "h", "ranks": 4, "streams": STREAMS} | fields
    return Timeline.of([Span(*s) for s in spans], **fields)


def assert_same(a, b):
    for field in ("kind", "plan_hash", "ranks", "streams", "names", "header"):
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


@given(
    start=st.floats(-1e8, 1e8 - 1e3),
    length=st.floats(0, 1e3),
    share=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_a_run_may_last_for_years(start, length, share, tmp_path_factory):
    path = tmp_path_factory.mktemp("t") / "a.json"
    end = start + length
    inside = share * (end - start)
    t = of((0, "inside", "x", 0, start, end, inside, 0, inside), ranks=1)
    _write_parts(path, t, offsets=[1 / 3])
    write(path, parts.read_parts(path))
    found = read(path)
    for column in ("start", "end", "waited", "coded"):  # float64 resolves 15 ns at 1e8 s
        np.testing.assert_allclose(getattr(found, column), getattr(t, column), rtol=0, atol=1e-7)


@given(cuts=st.lists(moments, min_size=3, max_size=20, unique=True).map(sorted))
def test_spans_that_touch_still_touch_in_the_file_and_after_a_merge(cuts, tmp_path_factory):
    path = tmp_path_factory.mktemp("t") / "a.json"
    ends = pairwise(cuts)
    t = of(*[(0, "compute", f"x{i}", 0, a, b, 0.0, 0) for i, (a, b) in enumerate(ends)], ranks=1)
    _write_parts(path, t, offsets=[1 / 3])
    write(path, parts.read_parts(path))
    found = read(path)
    np.testing.assert_array_equal(found.start[1:], found.end[:-1])
    assert overlaps(found, tolerance=0) == []


def test_the_file_is_a_trace_that_viewers_open(tmp_path):
    t = of((2, "inside", "b0/exchange", 1, 0.5, 0.75, 0.125, 64), header=RunHeader(hosts=("a",)))
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
    sentence = "used"
    try:
        t = read(path)
        if len(t):
            comparison_table(compare(t, t))
            overlaps(measure.waiting_filled(t))
    except CommschedError as error:
        sentence = str(error)
    assert sentence
    assert "\n" not in sentence


@settings(max_examples=sampling.examples(200))
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


GOOD = (
    '"name":"x","pid":1,"tid":0,"ts":1.0,"dur":2.0,"args":{"step":0,"waited_us":0.0,"nbytes":0.0}'
)


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
    with pytest.raises(
        CommschedError, match=r"t.json: not written: rank 0, step 0, 'x': is there twice"
    ):
        write(tmp_path / "t.json", twice)
    assert not list(tmp_path.iterdir())


# parts


def _write_parts(path, t, ranks=None, offsets=None):
    """Write what the ranks of `t` would; the clock of each is behind by its offset."""
    for rank in range(t.ranks) if ranks is None else ranks:
        offset = offsets[rank] if offsets else 0.0
        header = parts.PartHeader(
            plan_hash=t.plan_hash,
            ranks=t.ranks,
            rank=rank,
            clock_offset_us=offset * 1e6,
            clock_uncertainty_us=t.clock_uncertainty * 1e6,
            t0=100.0,
            streams=t.streams,
            names=t.names,
            meta=t.run,
        )
        with closing(parts.PartWriter(path, header)) as part:
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
    assert (found.names, found.streams, found.header) == (t.names, t.streams, t.run)
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
    assert "warning: ranks 0, 3 of 4 left no spans" in comparison_table(compare(t, found))
    write(tmp_path / "m.json", t)
    parts.remove_parts(tmp_path / "m.json")
    assert read(tmp_path / "m.json").warnings == ()


def test_operations_are_compared_on_the_ranks_of_both_files():
    """A prediction writes 64 ranks; those of a later stage are no operations of the run alone."""
    whole = of(
        *[(r, "compute", "xy"[r], s, s, s + 0.5 + r, 0.0, 0) for r in range(2) for s in range(3)]
    )
    first = whole.select(whole.rank == 0)
    for sides in ((first, whole), (whole, first)):
        found = compare(*sides)
        assert [op.name for op in found.operations] == ["x"]
        assert not found.only_measured
        assert not found.only_predicted
        assert dict(found.streams)["compute"].measured == pytest.approx(0.5)
        assert "of the 1 rank that both files hold" in found.warnings[0]
    assert "of the 1 rank that both files hold" in compare(first, first).warnings[0]
    second = whole.select(whole.rank == 1)
    assert "of other ranks" in compare(first, second).warnings[0]
    assert not compare(*[replace(whole, ranks=2)] * 2).warnings


def test_an_older_file_beside_the_parts_of_a_crashed_run_says_so(tmp_path):
    t = of((0, "compute", "x", 0, 0.0, 1.0, 0.0, 0))
    write(tmp_path / "m.json", t)
    _write_parts(tmp_path / "m.json", t)
    os.utime(tmp_path / "m.json", (1, 1))
    assert "a later run to this file did not end" in read(tmp_path / "m.json").warnings[0]
    warnings = read(parts.part_path(tmp_path / "m.json", 0)).warnings
    assert warnings == (
        f"{tmp_path / 'm.json'}: the run did not end; merged from what its ranks left",
    )


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
