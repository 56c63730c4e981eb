"""What happens when something breaks: real ranks are killed, stopped, late, wrong or misled."""

import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from commsched.plan import file as plan_file
from commsched.timeline import file as timeline_file
from commsched.timeline import last_report
from commsched.timeline.parts import find
from tests.support.jobs import IMPATIENT, IMPATIENT_RUN, ROOT, RUN, Ended, Job, Single
from tests.support.small_plans import graph, machine, plan

METHODS = ["ring+fp16", "ring+dense"]
SECONDS = 60.0  # for a job to end; generous, because many tests may share two cores

# Run a plan like `commsched run`, but rank 1 breaks at the place that the last argument names.
BROKEN = (
    IMPATIENT
    + """
import os
import signal
import subprocess
import sys
from pathlib import Path
from commsched.cli.main import main
from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.run import session
from commsched.run.job.launcher import environment_rank
from commsched.run.engine.worker import Emulated

where = sys.argv.pop()
mine = environment_rank() == 1

def breaks(place, step):
    if mine and place == where.split("-")[0] and step == 2:
        raise CommschedError("no such tensor") if "-" in where else KeyError("no such tensor")

class Broken(Emulated):
    def __init__(self, plan, rank, module):
        breaks("drawing", 2)
        super().__init__(plan, rank, module)

    def gradient(self, step, launch, out):
        breaks("gradient", step)
        super().gradient(step, launch, out)
        if mine and where in ("nan", "inf") and step == 2 and launch == 1:
            out[3] = float(where)

    def result(self, step, launch, values):
        breaks("result", step)

    def seconds(self, step, nominal):
        breaks("seconds", step)
        return super().seconds(step, nominal)

count = [0]
half = type(CODECS["fp16"])
encode = half.encode

def counted(self, values, state, start=0):
    count[0] += 1
    breaks("codec", count[0])
    return encode(self, values, state, start)

class Doubtful(session.Verifier):
    def check(self, step):
        if mine and where == "verify" and step == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        super().check(step)

def wrong(self, packet, out):
    out += packet.view(out.dtype)
    out[-1] += 1

if mine and where == "wrong":
    type(CODECS["dense"]).add = wrong
    type(CODECS["dense"]).plain_sum = lambda self, packet, out: None
session.Emulated, session.Verifier, half.encode = Broken, Doubtful, counted
raise SystemExit(main(sys.argv[1:]))
"""
)


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A plan for three ranks, with steps of 12 ms."""
    return written(tmp_path / "plan.json", lanes=3)


def written(path: Path, lanes: int, **changes: object) -> Path:
    made = plan(graph([500] * 4, seconds=1e-3), machine(1, lanes), METHODS, **changes)
    plan_file.write(path, made)
    return path


def long_run(made: Path, *options: str) -> list[str]:
    output = made.with_name("m.json")
    return [
        *IMPATIENT_RUN,
        str(made),
        "-o",
        str(output),
        "--steps",
        "1000000",
        "--force-size",
        *options,
    ]


def begun(made: Path, ranks: int = 3, spans: int = 20) -> bool:
    """Whether every rank has written more than `spans` spans."""
    parts = find(made.with_name("m.json"))
    return len(parts) == ranks and all(p.read_bytes().count(b"\n") > spans for p in parts.values())


def struck(
    made: Path, rank: int, what: int, *options: str, ranks: int = 3, spans: int = 20
) -> Ended:
    """How a run ends when one rank gets a signal; it fails, and leaves no process behind."""
    with Job(ranks, long_run(made, *options)) as job:
        job.until(lambda: begun(made, ranks, spans))
        os.kill(job.rank(rank), what)
        ended = job.wait(SECONDS)
        assert ended.status != 0
        assert job.left() == {}
    return ended


def assert_spans_are_kept(made: Path, ranks: int = 3) -> None:
    left = timeline_file.read(made.with_name("m.json"))
    assert "did not end" in left.warnings[0]
    assert set(left.rank.tolist()) == set(range(ranks))
    assert left.step.max() >= 1
    assert left.ranks == ranks


# --- A rank disappears. ---


def test_a_killed_rank_ends_the_job_and_leaves_the_spans(endless):
    struck(endless, 1, signal.SIGKILL)
    assert_spans_are_kept(endless)


def test_a_stopped_rank_is_named_by_those_that_wait_for_it(endless):
    ended = struck(endless, 1, signal.SIGSTOP, "--timeout", "1")
    lines = [line for line in ended.output.splitlines() if line.startswith("commsched: rank ")]
    assert any(line.endswith("no progress for 1 s (--timeout)") for line in lines), ended.output
    for rank in (0, 2):
        said = [line for line in lines if line.startswith(f"commsched: rank {rank}, inside: step ")]
        assert len(said) == 1, ended.output
        assert "/exchange waits for " in said[0]
        assert " B from rank " in said[0]
    assert any("from rank 1" in line for line in lines), ended.output
    (about,) = [line for line in lines if line.startswith("commsched: rank 1")]
    assert about == "commsched: rank 1 does not answer"
    assert "Traceback" not in ended.output
    found = last_report.read(endless.with_name("m.json.last"))
    apart = last_report.divergence(found)
    # None: stopped within the exchange; rank 2 may lack the end that rank 1 owes it.
    assert apart is None or apart.missing in ([1], [1, 2])
    assert all("/exchange" in found.of[rank].under_way[0].name for rank in (0, 2))
    assert_spans_are_kept(endless)


@pytest.mark.by_day(0)
def test_an_interrupt_leaves_no_process_behind(endless):
    with Job(3, long_run(endless)) as job:
        job.until(lambda: begun(endless))
        job.process.send_signal(signal.SIGINT)
        ended = job.wait(SECONDS)
        assert ended.status != 0
        assert job.left() == {}
    lines = [line for line in ended.output.splitlines() if line.startswith("commsched: ")]
    output = endless.with_name("m.json")
    told = f"{output}.rank*.jsonl, which `commsched show` reads as {output}.rank0.jsonl"
    assert lines == [f"commsched: rank 0: interrupted; the spans so far lie in {told}"]
    assert_spans_are_kept(endless)


@pytest.mark.parametrize("what", [signal.SIGTERM])
def test_a_demo_that_is_ended_takes_its_ranks_along(tmp_path, what):
    with Single(*RUN[:-1], "demo", "-o", str(tmp_path), "--ranks", "2") as job:
        job.until(lambda: {0, 1} <= set(job.processes().values()))
        job.process.send_signal(what)
        ended = job.wait(SECONDS)
        assert ended.status == 128 + what
        assert job.left() == {}


# --- A rank raises. ---


@pytest.mark.by_day(1)
@pytest.mark.parametrize("place", ["gradient", "codec"])
def test_an_exception_on_one_rank_ends_all_with_its_traceback(endless, place):
    run = [sys.executable, "-c", BROKEN, *long_run(endless)[3:], place]
    with Job(3, run) as job:
        ended = job.wait(SECONDS)
        assert job.left() == {}
    assert ended.status != 0
    assert "commsched: rank 1: Traceback (most recent call last):" in ended.output
    assert "KeyError: 'no such tensor'" in ended.output
    assert place == "drawing" or set(find(endless.with_name("m.json"))) == {0, 1, 2}


@pytest.mark.parametrize("place", ["seconds"])
def test_what_a_user_can_fix_on_one_rank_is_one_sentence(endless, place):
    run = [sys.executable, "-c", BROKEN, *long_run(endless)[3:], f"{place}-"]
    with Job(3, run) as job:
        ended = job.wait(SECONDS)
        assert job.left() == {}
    assert ended.status != 0
    said = [line for line in ended.output.splitlines() if line.startswith("commsched: ")]
    assert said == ["commsched: rank 1: no such tensor"], ended.output
    assert "Traceback" not in ended.output


@pytest.mark.by_day(0)
@pytest.mark.parametrize("broken", ["nan"])
def test_a_gradient_that_is_not_finite_ends_all_ranks_with_its_tensor_and_rank(endless, broken):
    run = [sys.executable, "-c", BROKEN, *long_run(endless)[3:], broken]
    tensor = plan_file.read(endless).launches[1].pieces[0].tensor
    with Job(3, run) as job:
        ended = job.wait(SECONDS)
        assert job.left() == {}
    assert ended.status != 0
    said = [line for line in ended.output.splitlines() if line.startswith("commsched: ")]
    assert said == [
        f"commsched: rank 1: step 2: the gradient of tensor {tensor!r} has {broken} at element 3;"
        " only finite numbers can be summed"
    ], ended.output


def test_a_wrong_sum_is_found_by_verify(endless):
    run = [sys.executable, "-c", BROKEN, *long_run(endless, "--verify")[3:], "wrong"]
    with Job(3, run) as job:
        ended = job.wait(SECONDS)
        assert job.left() == {}
    assert ended.status != 0
    found = re.search(r"rank \d: step 0, b1: element \d+ is \S+ on rank \d, but", ended.output)
    assert found, ended.output
    assert "Traceback" not in ended.output


@pytest.mark.by_day(0)
def test_a_rank_that_stops_while_results_are_verified_is_noticed(endless):
    options = ["--verify", "--timeout", "1"]
    run = [sys.executable, "-c", BROKEN, *long_run(endless, *options)[3:], "verify"]
    with Job(3, run) as job:
        ended = job.wait(SECONDS)
        assert job.left() == {}
    assert ended.status != 0
    assert "compute: step 2: verify waits for the dense sums of all ranks" in ended.output


# --- What a rank says is heard. ---


def test_a_rank_does_not_end_the_job_before_its_launcher_has_read_why():
    code = (
        "from commsched.run.job.ending import be_heard, say\n"
        "say('no such tensor'); be_heard(2.0); print('heard', flush=True)"
    )
    launched = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with launched as rank:
        assert rank.stdout is not None
        assert rank.stderr is not None
        assert select.select([rank.stderr], [], [], SECONDS)[0]  # it has said so
        assert not select.select([rank.stdout], [], [], 0.3)[0]
        assert rank.stderr.readline() == b"commsched: no such tensor\n"
        assert rank.stdout.readline() == b"heard\n"
    assert rank.returncode == 0


@pytest.mark.by_day(0)
def test_a_merge_that_fails_says_where_the_spans_are_and_what_reads_them(tmp_path):
    """Somebody makes a folder of the timeline's name while the job runs."""
    made, output = written(tmp_path / "plan.json", lanes=2), tmp_path / "m.json"
    with Job(2, [*RUN, str(made), "-o", str(output), "--steps", "300"]) as job:
        job.until(lambda: begun(made, ranks=2))
        output.mkdir()
        ended = job.wait(SECONDS)
    assert ended.status == 2, ended.output
    where = f"{output}.rank*.jsonl, which `commsched show` reads as {output}.rank0.jsonl\n"
    assert f"{output}: cannot be written: Is a " in ended.output
    assert f"; all spans lie in {where}" in ended.output
    left = timeline_file.read(tmp_path / "m.json.rank0.jsonl")
    assert set(left.step.tolist()) == set(range(300))
