"""A run of a million steps: its memory is flat, and none of its 12 million spans is lost."""

import re
from pathlib import Path

import pytest

from commsched.plan import file as plan_file
from tests.nightly.soak import table, watched
from tests.nightly.test_large_timelines import MEMORY, SECONDS, ended
from tests.support.jobs import RUN, Job
from tests.support.small_plans import graph, machine, plan

STEPS, RANKS = 1_000_000, 2
# The first step of each operation: a sum is applied in the next step.
FIRST = {"b0/apply": 1, "forward/l0": 0, "backward/l0": 0}
FIRST |= {"b0/encode": 0, "b0/exchange": 0, "b0/decode": 0}
SPAN = re.compile(rb'{"ph":"X","name":"([^"]+)","pid":(\d+),.*"args":{"step":(\d+),')


def steps_of(path: Path) -> dict[tuple[int, str], tuple[int, int]]:
    """The first and the last step of each rank's operations, which must have all between, once."""
    found: dict[tuple[int, str], tuple[int, int]] = {}
    with path.open("rb") as file:
        for line in file:
            if match := SPAN.match(line):
                key, step = (int(match[2]), match[1].decode()), int(match[3])
                first, last = found.get(key, (step, step - 1))
                assert step == last + 1, line
                found[key] = first, step
    return found


@pytest.mark.timeout(3 * 3600)
def test_a_million_steps_need_flat_memory_and_lose_nothing(tmp_path):
    """Long: almost an hour on two cores that have much else to do."""
    made, path = tmp_path / "plan.json", tmp_path / "measured.json"
    plan_file.write(made, plan(graph([500], seconds=1e-6), machine(1, RANKS), ["ring+dense"]))
    words = [str(made), "-o", str(path), "--steps", str(STEPS), "--force-size"]
    with Job(RANKS, [*RUN, *words]) as job:
        samples = list(watched(job, RANKS, 1.0))
        assert job.wait(1.0).status == 0, job.output
    assert table(samples) == 0  # says what grew
    assert max(line["most"] for line in samples) < MEMORY  # while spans are merged, too
    assert [each.name for each in tmp_path.iterdir() if ".rank" in each.name] == []
    whole = {(r, name): (n, STEPS - 1) for r in range(RANKS) for name, n in FIRST.items()}
    assert steps_of(path) == whole
    used, said = ended("show", str(path))
    assert "only its newest steps were read" in said
    assert used.seconds < SECONDS, used
    assert used.memory < MEMORY, used
