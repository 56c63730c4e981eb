"""Ranks that compute more slowly than before, or are stopped, are named whichever they are."""

import os
import signal
import sys

import pytest

from commsched.plan import file as plan_file
from commsched.timeline import file as timeline_file
from tests.support.jobs import MAIN, Job
from tests.support.small_plans import graph, machine, plan
from tests.test_faults import begun

RANKS, STEPS, SINCE = 3, 400, 250
# Rank `lazy` takes six times as long for its layers from step SINCE on.
LAZY = f"""
import sys
from commsched.run import session
from commsched.run.engine.worker import Emulated
from commsched.run.job.deadlines import Deadlines, use
from commsched.run.job.launcher import environment_rank

lazy = environment_rank() == int(sys.argv.pop())
use(Deadlines(slow=0.5))

class Lazy(Emulated):
    def seconds(self, step, nominal):
        return nominal * (6 if lazy and step >= {SINCE} else 1)

session.Emulated = Lazy
"""


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("stopped", [False, True])
def test_the_rank_that_the_others_wait_for_is_named(rank, stopped, tmp_path):
    made = plan(graph([500] * 4, seconds=1e-3), machine(1, RANKS), ["ring+fp16", "ring+dense"])
    path, measured = tmp_path / "plan.json", tmp_path / "m.json"
    plan_file.write(path, made)
    line = [sys.executable, "-c", LAZY + MAIN, "run", str(path), "-o", str(measured)]
    with Job(RANKS, [*line, "--steps", str(STEPS), str(-1 if stopped else rank)]) as job:
        if stopped:
            job.until(lambda: begun(path, RANKS))
            os.kill(victim := job.rank(rank), signal.SIGSTOP)
            job.until(lambda: f"rank {rank} makes the others wait for b" in job.output)
            os.kill(victim, signal.SIGCONT)
        done = job.wait(120)
    assert done.status == 0, done.output
    found = timeline_file.read(measured).warnings
    assert [one for one in found if one.startswith(f"rank {rank} makes the others wait for b")]
