"""A timeline's file is written in pieces of whole steps, and read in chunks."""

import json
from contextlib import closing
from math import inf, nan

import numpy as np
import pytest

from commsched import files
from commsched.timeline.file import Writer, read, write
from commsched.timeline.header import RunHeader
from commsched.timeline.intervals import Intervals, batches, difference, slabs, union
from commsched.timeline.model import Span, Timeline
from commsched.timeline.parts import CHUNK, PartHeader, PartWriter

RANKS = 3


def steps(first, last):
    """Two spans of each rank and step."""
    spans = (
        Span(rank, stream, name, step, step + start, step + start + 0.5, 0.0, 7, 0.0, agreed)
        for rank in range(RANKS)
        for step in range(first, last)
        for stream, name, start, agreed in (
            ("compute", "x", 0.0, None),
            ("between", "b/decide", 0.25, inf if step == 1 else step / 4),
        )
    )
    tables = {"streams": ("compute", "between"), "names": ("x", "b/decide")}
    return Timeline.of(spans, header=RunHeader(), plan_hash="h", ranks=RANKS, **tables)


@pytest.fixture
def pieces(tmp_path):
    """A file of 60 steps in 6 pieces."""
    path = tmp_path / "pieces.json"
    with files.writing(path) as file:
        lanes = [(rank, stream) for rank in range(RANKS) for stream in (0, 1)]
        writer = Writer(file, str(path), steps(0, 0), lanes)
        for first in range(0, 60, 10):
            writer.add(steps(first, first + 10))
        writer.end()
    return path


def rows(t):
    return sorted((s.rank, s.step, s.name, s.start, s.end, s.nbytes) for s in t)


def test_pieces_are_one_timeline_and_one_piece_has_the_bytes_of_a_whole_file(pieces, tmp_path):
    assert rows(read(pieces)) == rows(steps(0, 60))
    text = pieces.read_bytes()
    assert text.count(b"\n\n") == 5
    write(tmp_path / "whole.json", steps(0, 60))
    whole = (tmp_path / "whole.json").read_bytes()
    events = (sorted(json.loads(each)["traceEvents"], key=str) for each in (text, whole))
    assert next(events) == next(events)
    assert len(text) == len(whole) + 5


def test_the_newest_whole_steps_of_a_large_file_are_read_and_a_warning_says_so(pieces):
    size = pieces.stat().st_size
    found = read(pieces, window=size // 3)
    first = found.step.min()
    assert first in (40, 50)
    assert rows(found) == rows(steps(int(first), 60))
    assert found.warnings == (
        f"{pieces}: larger than {size // 3} bytes, so that only its newest steps were read:"
        f" those from step {first} on",
    )
    assert read(pieces, window=size).warnings == ()


@pytest.mark.parametrize("left", ["file", "parts"])
def test_what_ranks_agreed_on_in_the_first_steps_of_a_large_file_is_found(left, pieces):
    size = pieces.stat().st_size
    if left == "parts":
        for rank in range(RANKS):
            header = PartHeader(plan_hash="h", ranks=RANKS, rank=rank)
            with closing(PartWriter(pieces, header)) as part:
                part.append(span for span in steps(0, 60) if span.rank == rank)
        pieces.unlink()
    small = size // 5
    newest = read(pieces, small)
    assert "0/b/decide" not in newest.decisions
    if left == "parts":
        first = int(newest.step.min())
        assert 0 < first < 60
        assert len(newest) == np.count_nonzero(steps(0, 60).step >= first)
    found = read(pieces, small, decided=4)
    assert len(found) == 4 * RANKS
    assert str(found.decisions) == str(
        {f"{k}/b/decide": v for k, v in enumerate([0.0, nan, 0.5, 0.75])}
    )


def test_a_file_of_many_chunks_reads_back(tmp_path):
    t = steps(0, 8000)
    write(tmp_path / "a.json", t)
    assert (tmp_path / "a.json").stat().st_size > CHUNK
    found = read(tmp_path / "a.json")
    for what in ("rank", "step", "name", "start", "end"):
        np.testing.assert_array_equal(getattr(found, what), getattr(t, what))


@pytest.mark.parametrize("groups", [1, 2, 5])
def test_a_sweep_in_batches_finds_what_one_sweep_finds(groups, monkeypatch):
    """Groups never meet, and time is cut anywhere: parts give the same as all at once."""
    rng = np.random.default_rng(0)
    count = 3000
    group, start = np.sort(rng.integers(0, groups, count)), rng.random(count)
    a = Intervals(group, start, start + rng.random(count) * 3e-3)
    b = Intervals(group[::2], start[::2] + 3e-4, start[::2] + 6e-4)
    once = [*union(a), *difference(a, b)]
    monkeypatch.setattr("commsched.timeline.intervals.AT_ONCE", 400)
    assert len(list(batches(group))) * len(list(slabs(a.rows(group == 0)))) >= 5
    for column, expected in zip([*union(a), *difference(a, b)], once, strict=True):
        np.testing.assert_array_equal(column, expected)
