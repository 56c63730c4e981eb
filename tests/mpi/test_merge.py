"""The spans of all ranks become one file, some steps at a time."""

import numpy as np
import pytest

from commsched.run.engine.merge import NEWEST, merge
from commsched.run.job.watchdog import watchdog
from commsched.timeline import file as timeline_file
from commsched.timeline.header import RunHeader
from commsched.timeline.measure import waiting_filled
from commsched.timeline.model import Span, Timeline
from commsched.timeline.parts import PartHeader, PartWriter, find
from tests.support.ranks import WORLD, meet, together

pytestmark = pytest.mark.groups(1, 2, 3)
STEPS, TABLES = 50, {"streams": ("compute", "between"), "names": ("x", "b/exchange", "late")}


def spans_of(rank):
    """A rank's spans in the order of their ends: some end after much later steps have begun."""
    found = []
    for step in range(STEPS):
        found.append(Span(rank, "compute", "x", step, step, step + 0.5, 0.0, 0))
        start = step + 0.5 + 0.01 * rank
        found.append(Span(rank, "between", "b/exchange", step, start, step + 0.9, 0.0, 8))
        if step % 7 == rank:
            found.append(Span(rank, "between", "late", step, step + 1.0, step + 20.5, 0.0, 8))
    return sorted(found, key=lambda span: span.end)


def merged(path, block):
    """What `merge` returns, given every rank's part."""
    header = PartHeader(plan_hash="h", ranks=WORLD.size, rank=WORLD.rank, **TABLES)
    writer = PartWriter(path, header, block)
    for span in spans_of(WORLD.rank):
        writer.append([span])
    writer.close()
    with watchdog(WORLD, "test", 60.0) as dog:
        found = merge(WORLD, path, writer, header, {}, dog)
    meet(WORLD)  # each rank has removed its part
    return found


def whole():
    everything = (span for rank in range(WORLD.size) for span in spans_of(rank))
    return waiting_filled(
        Timeline.of(everything, header=RunHeader(), plan_hash="h", ranks=WORLD.size, **TABLES)
    )


def rows(t):
    return sorted(t, key=lambda s: (s.rank, s.step, s.name))


def test_a_short_run_is_one_piece_with_the_bytes_of_a_file_written_at_once(folder):
    found, problems = merged(folder / "m.json", STEPS), []
    if WORLD.rank == 0:
        timeline_file.write(folder / "whole.json", whole())
        same = (folder / "m.json").read_bytes() == (folder / "whole.json").read_bytes()
        problems += [] if same else ["other bytes"]
        problems += [] if rows(found) == rows(whole()) else ["another summary"]
        problems += [f"left: {find(folder / 'm.json')}"] if find(folder / "m.json") else []
    together(problems)


@pytest.mark.by_day(4)
@pytest.mark.parametrize("block", [1, 3, 8])
def test_spans_that_end_much_later_are_merged_with_their_step(folder, block):
    found, problems = merged(folder / "m.json", block), []
    if WORLD.rank == 0:
        pieces = -(-STEPS // block)
        there = timeline_file.read(folder / "m.json")
        problems += [] if rows(found) == rows(whole()) else ["another summary"]
        for what in ("start", "end", "waited"):
            mine, theirs = (np.array([getattr(s, what) for s in rows(t)]) for t in (there, whole()))
            problems += [] if np.allclose(mine, theirs, rtol=0, atol=2e-9) else [f"other {what}"]
        gaps = (folder / "m.json").read_bytes().count(b"\n\n")
        problems += [] if gaps == pieces - 1 else [f"{gaps} gaps between {pieces} pieces"]
    together(problems)


def test_rank_0_keeps_the_newest_steps_only_and_says_so(folder, monkeypatch):
    monkeypatch.setattr("commsched.run.engine.merge.NEWEST", 60)
    assert NEWEST > 60
    found, problems = merged(folder / "m.json", 5), []
    if WORLD.rank == 0:
        least = found.step.min()
        problems += [] if least > 0 and found.step.max() == STEPS - 1 else ["other steps"]
        told = f"{folder / 'm.json'} has all steps; summarised here are those from {least} on"
        problems += [] if found.warnings == (told,) else [str(found.warnings)]
        there = timeline_file.read(folder / "m.json")
        problems += [] if len(there) == len(whole()) else ["the file lacks spans"]
    together(problems)
