"""`bench codecs --device cuda`: what it would measure, and one sentence where there is no GPU."""

from pathlib import Path

import pytest

from commsched.cli import bench_gpu
from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.lab.bench import gpu, gpu_report
from commsched.lab.bench.codecs import PARTITION
from commsched.lab.bench.device_buffers import BufferSeconds
from commsched.plot.gpu import draw
from tests.cuda_on_cpu import cpu

pytestmark = cpu.MARKS


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has an NVIDIA GPU")
def test_without_a_gpu_one_sentence_says_so(capsys):
    for words in (["codecs", "--device", "cuda"], ["gpu"]):
        assert main(["bench", *words]) == 2
        out, error = capsys.readouterr()
        assert not out
        assert error.startswith("commsched: --device cuda")
        assert len(error.splitlines()) == 1


SELECTION = {
    "codec": gpu.SELECTION, "numel": 10**6, "fewest": 12 * 10**6, "extra": 2 * 10**6,
    "seconds": {"median": 6e-3, "least": 5e-3, "most": 7e-3},
    "copy": {"median": 2e-3, "least": 1e-3, "most": 3e-3}, "asked": 0.4, "of_copy": 0.5,
}  # fmt: skip
SPENT = {"median": 9e-4, "least": 9e-4, "most": 9e-4}
PARTED = {**SELECTION, "codec": PARTITION, "seconds": SPENT, "extra": 7 * 10**6, "asked": 0.1}
MESSAGE = {
    "over": "", **BufferSeconds("GPU", "by its pointers", 10**9, 0.1, 0.125, 0.2, 0.025)._asdict(),
    "of_copy": 0.8, "of_staged": 5.0,
}  # fmt: skip
STEP = {
    "type": "cell", "net": "gpt2", "compute": "sleep", "ratio": 1.0, "method": "ring+dense",
    "machine": "m", "cores": 16, "plan": "h", "nbytes": 1e6, "predicted": 1.15, "measured": 1.0,
    "spread": 0.1, "stolen": 0.0, "exchanges": [[1.0, 1.0]], "interval": None,
}  # fmt: skip
FOUND = {
    "format": gpu_report.FORMAT,
    "versions": {"gpu": "a GPU", "driver": "1.2.3"},
    "codecs": [SELECTION, PARTED],
    "messages": [MESSAGE, {**MESSAGE, "over": "UCX", "pointed": None}],
    "steps": [{**STEP, "bed": "1x2-gpu"}, {**STEP, "bed": "1x4-gpu"}],
    "failed": {},
}


def test_a_row_of_the_table_has_its_share_of_the_copy_and_its_bar():
    timing = gpu.Timing(**SELECTION["copy"])
    row = gpu.GpuRow("fp16", 10**6, 12 * 10**6, timing._replace(median=6e-3), timing, 0, 0.4)
    assert row.of_copy == pytest.approx(12 / 6e-3 / (8 / 2e-3))
    rows = [SELECTION, PARTED]
    cells = [dict(zip(bench_gpu.HEADER, bench_gpu._cells(row, rows), strict=True)) for row in rows]
    assert cells[0]["of copy"] == "50.0%"
    assert cells[0]["asked"] == ">= 40%"
    assert cells[0]["extra memory"] == "0.50x (<= 1.5x)"
    assert cells[1]["asked"] == "< 10% of topk:0.01:sampled, is 15.0%"


def test_messages_are_compared_with_a_copy_and_with_each_other():
    assert bench_gpu.messages(MESSAGE).splitlines()[1:] == [
        "copy to pinned memory   10.00 GB/s",
        "through pinned memory   8.00 GB/s, 80.0% of the copy (asked: >= 80%)",
        "from host to host       5.00 GB/s: MPI alone, without a GPU",
        "by pointers             40.00 GB/s, 5.00x of through pinned memory (asked: >= 3x)",
    ]
    assert "this MPI does not take them" in bench_gpu.messages({**MESSAGE, "pointed": None})


def test_every_number_is_held_against_its_bar():
    judged = {bar.what: bar for bar in gpu_report.asked(FOUND | {"messages": [MESSAGE]})}
    assert {what for what, bar in judged.items() if not bar.met} == {
        "partition, extra memory, of the gradient",  # 1.75 of at most 1.5
        "partition, of topk:0.01:sampled's time",  # 15 % of at most 10
        "2 ranks on GPUs, gpt2 ring+dense",  # 15 % of at most 10; 20 for 4 ranks
    }
    assert len(judged) == 8
    missed = gpu_report.lines({**FOUND, "bars": [], "failed": {"steps": "no room"}})
    assert missed == ["FAILED steps: no room"]


def test_the_document_is_drawn(tmp_path):
    empty = {**FOUND, "codecs": [], "messages": [], "steps": []}
    for name, found in (("all.png", FOUND), ("none.svg", empty)):
        draw(found, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 5000
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(CommschedError, match=r"other.json: not a file of format 'commsched-gpu/1'"):
        gpu_report.read(tmp_path / "other.json")
