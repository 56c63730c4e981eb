"""Timelines of two million spans: what the commands that read them take."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from commsched import files
from commsched.timeline.file import Writer
from commsched.timeline.header import Measured, Predicted
from commsched.timeline.model import Span, Timeline

RANKS, LAYERS, STEPS, AT_ONCE = 4, 12, 14000, 500
SECONDS, MEMORY = 10.0, 500e6  # of the processor, B
STREAMS = ("compute", "between")
OPERATIONS = [
    *(("compute", f"{what}/l{i}", 0.0) for what in ("forward", "backward") for i in range(LAYERS)),
    *(("between", f"b{i}/exchange", 1e-4) for i in range(LAYERS)),
]


def some_steps(first: int, last: int, header: Measured | Predicted) -> Timeline:
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


def written(path: Path, steps: int, header: Measured | Predicted) -> Path:
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
    return written(folder / "measured.json", STEPS, Measured(steps=STEPS))


@pytest.mark.parametrize("words", ["show", "compare", "plot timeline.png", "plot timeline.html"])
def test_two_million_spans_take_10_s_of_the_processor_and_500_mb(words, measured, tmp_path):
    command, *picture = words.split()
    things = [str(measured)]
    if command == "compare":
        things.insert(0, str(written(tmp_path / "predicted.json", 20, Predicted(steps=20))))
    if picture:
        things += ["-o", str(tmp_path / picture[0])]
    process = subprocess.Popen([sys.executable, "-m", "commsched", command, *things])
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert used.ru_utime < SECONDS, used
    assert used.ru_maxrss * 1024 < MEMORY, used
