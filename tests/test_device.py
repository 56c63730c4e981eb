"""What a command says where no GPU can be used, and the order of what is given to a device."""

import sys
from pathlib import Path

import pytest

from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.kernels.device import gpus
from commsched.plan import file as plan_file
from commsched.program.model import After
from commsched.run.engine.device_queue import DeviceQueue
from commsched.run.engine.recorder import Recorder
from commsched.run.wire.device import HOST
from commsched.run.wire.placement import find_device
from tests.support.jobs import Job
from tests.support.late_device import Late
from tests.support.rank_server import on_ranks
from tests.support.small_plans import graph, machine, plan

COMMSCHED = [sys.executable, "-m", "commsched"]


@pytest.fixture
def without():
    """Only where there is no GPU."""
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA GPU")


@pytest.fixture
def made(tmp_path):
    path = tmp_path / "plan.json"
    plan_file.write(path, plan(graph([300]), machine(1, 2), ["ring+dense"]))
    return path


def one_sentence(text: str) -> bool:
    return text.startswith("commsched: --device cuda") and text.count("\n") == 1


@pytest.mark.parametrize("command", ["run", "calibrate", "train", "bench"])
def test_all_ranks_end_with_one_sentence_where_there_is_no_gpu(command, made, tmp_path, without):
    words = {
        "run": ["run", str(made), "-o", str(tmp_path / "m.json")],
        "calibrate": ["calibrate", "-o", str(tmp_path / "m.json")],
        "train": ["train", "--net", "mlp:8:2"],
        "bench": ["bench", "all-reduce"],
    }
    ended = on_ranks(2, *words[command], "--device", "cuda")
    assert ended.status == 2, ended.output
    assert one_sentence(ended.output), ended.output
    assert not (tmp_path / "m.json").exists()


@pytest.mark.parametrize(
    "words", [["profile", "mlp:8:2", "-o", "x.json"], ["bench", "codecs"], ["bench"]]
)
def test_commands_without_ranks_say_it_too(words, capsys, without):
    assert main([*words, "--device", "cuda"]) == 2
    assert one_sentence(capsys.readouterr().err)


def test_a_bench_of_the_processor_has_a_name(capsys):
    assert main(["bench"]) == 2
    assert capsys.readouterr().err.startswith("commsched: bench needs a NAME; known: all-reduce, ")


def test_the_sentence_says_what_is_missing(without):
    with pytest.raises(CommschedError, match=r"\.\[cuda\]|finds no GPU"):
        gpus()


def test_another_device_is_refused(made, tmp_path, capsys):
    words = ["run", str(made), "-o", str(tmp_path / "m.json"), "--device", "tpu"]
    assert main(words) == 2
    assert capsys.readouterr().err == "commsched: --device must be one of cpu, cuda, got 'tpu'\n"


def test_numpy_is_a_device_without_streams():
    device = find_device("cpu")
    assert device is HOST
    start, end = device.mark(), device.mark()
    assert end.done()
    assert start.when() <= end.when()


def test_spans_of_a_device_are_recorded_in_order_once_they_are_over():
    recorder, spans = Recorder(0), []
    recorder.takers.append(spans.append)
    given = DeviceQueue(Late(), recorder)
    for name in ("forward", "backward"):
        given.add(3, name, given.device.mark())
    assert not spans
    given.settle(wait=False)  # the third look at the first one's end
    assert [span.name for span in spans] == ["forward"]
    given.settle(wait=True)
    assert [span.name for span in spans] == ["forward", "backward"]
    assert all(span.start <= span.end and span.step == 3 for span in spans)


def test_who_needs_compute_waits_for_the_device():
    given = DeviceQueue(Late(), Recorder(0))
    given.add(3, "backward", given.device.mark())
    open_ = given._open[0]
    given.wait(4, [After("backward", 1), After("other", 0)])
    assert open_.end.done()
    given.settle(wait=False)
    assert not given._open


@pytest.mark.by_day(1)
@pytest.mark.parametrize(
    ("switch", "known"),
    [("COMMSCHED_BUFFERS", "auto, staged, direct"), ("COMMSCHED_NATIVE", "auto, mpi, nccl")],
)
def test_a_wrong_way_is_refused_by_all_ranks(made, tmp_path, switch, known):
    words = ["run", str(made), "-o", str(tmp_path / "m.json")]
    with Job(2, [*COMMSCHED, *words], variables={switch: "fast"}) as job:
        ended = job.wait(60)
    assert ended.status == 2
    assert f"{switch} must be one of {known}; got 'fast'\n" in ended.output
