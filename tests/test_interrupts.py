"""Nothing is lost: Ctrl-C at any moment of `plan`, and outputs that cannot be written."""

import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commsched.cli.main import main
from commsched.cli.signals import one_interrupt
from commsched.plan import file as plan_file
from tests.support.jobs import ROOT

WORDS = ("plan", "bert-base", "--machine", "p3.16xlarge", "--nodes", "4", "--progress")
SO_FAR = "commsched: interrupted; this is the best plan so far"
NOTHING = "commsched: interrupted before a plan was found; nothing is written"
NOT_BEGUN = "commsched: interrupted before the command began; nothing is written"


class Interrupted:
    """A planning process that gets SIGINT once a line of its progress says so, or after a time."""

    def __init__(self, path: Path, after: str | float, times: int = 1) -> None:
        self.path = path
        words = [sys.executable, "-m", "commsched", *WORDS, "-o", str(path)]
        with subprocess.Popen(
            words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            seen = ""
            if isinstance(after, float):
                time.sleep(after)
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


@pytest.mark.parametrize("after", [0.3, 0.6, 1.2])  # s: imports, files, the first plan
def test_an_interrupt_at_any_time_gives_a_plan_or_a_sentence(after, tmp_path):
    job = Interrupted(tmp_path / "plan.json", after)
    assert "Traceback" not in job.errors
    if job.path.exists():
        plan_file.read(job.path).check()
        assert job.status == 0
    else:
        assert job.status == 130
        assert job.errors.splitlines()[-1] in (NOTHING, NOT_BEGUN)


@pytest.mark.parametrize("nodes", [1000, 100_000])
def test_a_time_limit_is_kept_whatever_the_size(nodes, tmp_path):
    """1000 nodes: there is a plan, whose reasons would take longer; 100,000: there is no plan."""
    path = tmp_path / "plan.json"
    words = ["plan", "vgg16", "--machine", "p3dn.24xlarge", "--nodes", str(nodes)]
    begun = resource.getrusage(resource.RUSAGE_CHILDREN)
    line = [sys.executable, "-m", "commsched", *words, "--time-limit", "1", "-o", str(path)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    # 20 % and 1 s: imports, the file, the report. Other work does not count in processor time.
    assert ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime < 1 * 1.2 + 1
    status, said = done.returncode, done.stderr
    assert (status, path.exists()) in ((0, True), (2, False))
    if nodes == 100_000:
        assert status == 2
        assert "no plan was found within --time-limit 1 s; give more time" in said


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
