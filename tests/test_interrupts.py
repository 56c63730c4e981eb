"""Nothing is lost: Ctrl-C at any moment of `plan`, and outputs that cannot be written."""

import os
import resource
import signal
import subprocess
import sys
import time
import weakref
from itertools import count
from pathlib import Path

import pytest

from commsched.__main__ import main as start
from commsched.cli.main import main
from commsched.cli.signals import Spare, one_interrupt
from commsched.interrupts import dropped_interrupts, raise_soon
from commsched.plan import file as plan_file
from tests.support.jobs import ROOT

WORDS = ("plan", "vgg16", "--machine", "p3.16xlarge", "--nodes", "4", "--progress")
SO_FAR = "commsched: interrupted; this is the best plan so far"
NOTHING = "commsched: interrupted before a plan was found; nothing is written"
NOT_BEGUN = "commsched: interrupted before the command began; nothing is written"


class Interrupted:
    """A planning process that gets SIGINT after a line of its progress, or seconds of its work."""

    def __init__(self, path: Path, after: str | float, times: int = 1) -> None:
        self.path = path
        words = [sys.executable, "-m", "commsched", *WORDS, "-o", str(path)]
        with subprocess.Popen(
            words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            seen = ""
            if isinstance(after, float):
                while process.poll() is None and processor_seconds(process.pid) < after:
                    time.sleep(1e-3)
            else:
                while not seen.endswith("\n") or after not in seen.splitlines()[-1]:
                    line = process.stderr.readline()
                    assert line, seen
                    seen += line
            for _ in range(times):
                process.send_signal(signal.SIGINT)
            self.said, rest = process.communicate(timeout=60)
            self.errors = seen + rest
            self.status = process.returncode


def processor_seconds(process: int) -> float:
    """How long a process has computed; on a busy machine Python takes long to begin."""
    ticks = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


@pytest.mark.by_day(1)
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(
    ("after", "compared"),
    [
        ("best lossless, first: ", []),
        ("best lossless, improvement: ", []),
        ("best with fp16, first: ", ["dense", "lossless"]),
    ],
)
def test_an_interrupt_leaves_the_best_plan_so_far(after, compared, times, tmp_path):
    job = Interrupted(tmp_path / "plan.json", after, times)
    assert job.status == 0, job.errors
    assert SO_FAR in job.errors
    assert "Traceback" not in job.errors
    made = plan_file.read(job.path)
    made.check()
    assert made.iteration > 0
    assert [row.family for row in made.alternatives] == compared
    assert f"plan {made.hash[:12]}: " in job.said


@pytest.mark.by_day(1)
@pytest.mark.parametrize("after", [0.3, 0.6, 0.95])  # s: imports, files, the first plan
def test_an_interrupt_at_any_time_gives_a_plan_or_a_sentence(after, tmp_path):
    job = Interrupted(tmp_path / "plan.json", after)
    assert "Traceback" not in job.errors
    if job.path.exists():
        plan_file.read(job.path).check()
        assert job.status == 0
    else:
        assert job.status == 130
        assert job.errors.splitlines()[-1] in (NOTHING, NOT_BEGUN)


@pytest.mark.by_day(1)
@pytest.mark.parametrize(
    ("words", "left_out"),
    [
        ("vgg16 --machine p3dn.24xlarge --nodes 1000", ""),  # its reasons would take longer
        ("vgg16 --machine p3dn.24xlarge --nodes 100000", None),  # there is no plan
        ("gpt3-175b --machine summit --nodes 1000 --explain", "a strategy that fits"),
        ("lstm --machine p3.16xlarge --nodes 900 --allow fp16 --break-even", "the break-even"),
    ],
)
def test_a_time_limit_is_kept_whatever_the_size(words, left_out, tmp_path):
    path = tmp_path / "plan.json"
    line = [sys.executable, "-m", "commsched", "plan", *words.split(), "-o", str(path)]
    begun = resource.getrusage(resource.RUSAGE_CHILDREN)
    line += ["--time-limit", "1"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    # 20 % and 1 s: imports, the file, the report. Other work does not count in processor time.
    assert ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime < 1 * 1.2 + 1
    status, said = done.returncode, done.stderr
    assert (status, path.exists()) in ((0, True), (2, False))
    if status == 0 and left_out:
        assert left_out in done.stdout.partition("left out, as --time-limit was over: ")[2]
    if left_out is None:
        assert status == 2
        assert "no plan was found within --time-limit 1 s; give more time" in said


def test_what_only_adds_to_a_result_is_left_out_when_the_time_is_over():
    spare = Spare(0.2)
    assert spare.made("one", lambda: 1, 0) == 1
    begun = time.process_time()
    assert spare.made("counting", lambda: sum(1 for _ in count()), 0) == 0
    assert time.process_time() - begun < 1.2 * 0.2
    assert spare.made("two", lambda: 2, 0) == 0
    assert spare.left_out == ["counting", "two"]
    assert Spare(None).made("three", lambda: 3, 0) == 3


def test_an_interrupt_of_what_only_adds_to_a_result_is_no_time_limit():
    spare = Spare(60.0)
    with pytest.raises(KeyboardInterrupt):
        spare.made("signals", lambda: signal.raise_signal(signal.SIGINT), None)
    assert spare.left_out == []


def test_an_interrupt_in_a_callback_that_drops_it_is_raised_later():
    watched = [set[int]()]
    watch = weakref.ref(watched[0], lambda _: signal.raise_signal(signal.SIGINT))

    def compute() -> None:
        watched.clear()
        end = time.monotonic() + 10.0
        while time.monotonic() < end:
            pass

    with dropped_interrupts(raise_soon), one_interrupt(), pytest.raises(KeyboardInterrupt):
        compute()
    assert watch() is None


def test_an_interrupt_while_the_command_line_is_imported_leaves_no_traceback(monkeypatch):
    class Interrupting:
        def find_spec(self, name, *_):
            if name == "commsched.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "commsched.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    assert start() == 130


def test_an_interrupt_in_a_text_that_python_executes_ends_with_the_same_status(tmp_path):
    path = tmp_path / "plug_in.py"
    path.write_text('exec("raise KeyboardInterrupt")\n')
    words = [sys.executable, "-m", "commsched", "--plugin", str(path), "list"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()) == (130, ["commsched: interrupted"])


def test_only_the_first_interrupt_of_a_block_interrupts_it():
    with one_interrupt(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    done = 0
    with one_interrupt():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)  # while it brings things into safety
            done = 1
    with one_interrupt() as hold:
        hold()
        signal.raise_signal(signal.SIGINT)
        done += 1
    assert done == 2


@pytest.mark.parametrize(
    "words",
    [
        "plan no-net --machine no-machine -o",
        "simulate no-plan.json -o",
        "plot no-timeline.json -o",
        "profile no-net -o",
        "price 1000 --machine no-machine --figure",
        "models --transformer layers=1,hidden=0,heads=1 -o",
        "machine new --gpus 0 -o",
        "bench buffers --output",
    ],
)
@pytest.mark.parametrize("place", ["none/x", "."])
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    words, place, tmp_path, capsys
):
    kind = ".png" if "plot" in words or "--figure" in words else ".json"
    path = tmp_path / (place if place == "." else place + kind)
    assert main([*words.split(), str(path)]) == 2
    assert f"{path}: cannot be written there" in capsys.readouterr().err


def test_a_sweep_of_trainings_refuses_its_file_before_the_first_training(tmp_path, capsys):
    path = str(tmp_path / "plan.json")
    words = ["plan", "alexnet", "--machine", "summit", "--nodes", "1", "--time-limit", "0"]
    assert main([*words, "-o", path]) == 0
    capsys.readouterr()
    words = ["train", "--net", "mlp:8:1", "--plan", path, "--together"]
    assert main([*words, "--sweep", str(tmp_path / "none" / "trials.json")]) == 2
    assert "none/trials.json: cannot be written there" in capsys.readouterr().err


def test_a_folder_that_is_a_file_is_refused_before_the_work(tmp_path, capsys):
    path = tmp_path / "file"
    path.write_text("")
    for words in ("reproduce fft -o", "validate --bed 1x2-shared -o"):
        assert main([*words.split(), str(path)]) == 2
        assert f"{path}: cannot be made" in capsys.readouterr().err


def test_a_rank_without_others_ends_with_one_sentence():
    code = (
        "from mpi4py import MPI\nfrom commsched.run.job.ending import end_all\n"
        "end_all(KeyboardInterrupt(), MPI.COMM_WORLD)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "commsched: rank 0: interrupted\n"
