"""Timelines of two million spans: what the commands that read them take."""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from commsched import files
from commsched.timeline.file import Writer, read
from commsched.timeline.header import Predicted, RunHeader
from commsched.timeline.model import Span, Timeline
from commsched.timeline.parts import WINDOW, PartHeader, PartWriter

RANKS, LAYERS, STEPS, AT_ONCE = 4, 12, 14000, 500
SECONDS, MEMORY = 10.0, 500e6  # of the processor, B
# A small process starts the command: the memory of who starts one counts as its own.
USED = """
import json, resource, subprocess, sys
status = subprocess.call(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([used.ru_utime, used.ru_maxrss * 1024]), flush=True)
sys.exit(status)
"""
STREAMS = ("compute", "between")
OPERATIONS = [
    *(("compute", f"{what}/l{i}", 0.0) for what in ("forward", "backward") for i in range(LAYERS)),
    *(("between", f"b{i}/exchange", 1e-4) for i in range(LAYERS)),
]


class Used(NamedTuple):
    """What a command used."""

    seconds: float  # of the processor, in user mode
    memory: int  # B, the most


def some_steps(first: int, last: int, header: RunHeader | Predicted) -> Timeline:
    """Compute that follows compute, and exchanges behind backward, later by chance on each rank."""
    rng = np.random.default_rng(first)
    spans = (
        Span(rank, stream, name, step, at, at + 8e-4, waited, int(4096 * (stream == "between")))
        for rank in range(RANKS)
        for step in range(first, last)
        for number, (stream, name, waited) in enumerate(OPERATIONS)
        if (at := 0.03 * step + 1e-3 * (number - 11 * (number >= 24)) + 1e-4 * rng.random())
    )
    names = [name for _, name, _ in OPERATIONS]
    tables = {"streams": STREAMS, "names": names}
    return Timeline.of(spans, header=header, plan_hash="0" * 64, ranks=RANKS, **tables)


def written(path: Path, steps: int, header: RunHeader | Predicted) -> Path:
    with files.writing(path) as file:
        lanes = [(rank, stream) for rank in range(RANKS) for stream in range(len(STREAMS))]
        writer = Writer(file, str(path), some_steps(0, 0, header), lanes)
        for first in range(0, steps, AT_ONCE):
            writer.add(some_steps(first, min(first + AT_ONCE, steps), header))
        writer.end()
    return path


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert RANKS * STEPS * len(OPERATIONS) > 2e6
    folder = tmp_path_factory.mktemp("large")
    return written(folder / "measured.json", STEPS, RunHeader(steps=STEPS))


@pytest.mark.parametrize("words", ["show", "compare", "plot timeline.png", "plot timeline.html"])
def test_two_million_spans_take_10_s_of_the_processor_and_500_mb(words, measured, tmp_path):
    command, *picture = words.split()
    things = [str(measured)]
    if command == "compare":
        things.insert(0, str(written(tmp_path / "predicted.json", 20, Predicted(steps=20))))
    if picture:
        things += ["-o", str(tmp_path / picture[0])]
    used, _ = ended(command, *things)
    assert used.seconds < SECONDS, used
    assert used.memory < MEMORY, used


@pytest.mark.timeout(1200)
def test_parts_of_a_crashed_run_beyond_what_is_read_give_their_newest_steps(tmp_path):
    """Long: 380 MiB of spans, of a run of more than a million steps that did not end."""
    path, ranks, steps = tmp_path / "measured.json", 2, 0
    names = {"streams": STREAMS, "names": ["forward", "b0/decide"]}
    headers = [
        PartHeader(plan_hash="0" * 64, ranks=ranks, rank=rank, meta=RunHeader(), **names)
        for rank in range(ranks)
    ]
    parts = [PartWriter(path, header) for header in headers]
    while parts[0].path.stat().st_size < 1.2 * WINDOW / ranks:
        steps += AT_ONCE
        for rank, part in enumerate(parts):
            spans = (
                Span(rank, stream, name, step, at + after, at + after + 1e-4, 0.0, 8, 0.0, decided)
                for step in range(steps - AT_ONCE, steps)
                for at in (1e-3 * step,)
                for stream, name, after, decided in (
                    ("compute", "forward", 0.0, None),
                    ("between", "b0/decide", 2e-4, step / 7),
                )
            )
            part.append(spans)
    for part in parts:
        part.close()
    with parts[1].path.open("ab") as file:
        file.write(b'["compute","forw')  # where it was killed
    used, said = ended("show", str(path))
    assert "only their newest steps" in said
    assert "the run did not end" in said
    assert "rank 1: the last line of its part is torn" in said
    assert used.memory < 2 * MEMORY, used
    found = read(path, decided=3)
    assert found.decisions == {f"{step}/b0/decide": step / 7 for step in range(3)}


def ended(*words: str) -> tuple[Used, str]:
    """Run a command to its good end; return what it used, and what it printed."""
    command = [sys.executable, "-m", "commsched", *words]
    done = subprocess.run([sys.executable, "-c", USED, *command], capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    *_, last = done.stdout.splitlines()
    return Used(*json.loads(last)), said
