"""`bench codecs --device cuda`: what it would measure, and one sentence where there is no GPU."""

from pathlib import Path

import numpy as np
import pytest

from commsched.bench import gpu
from commsched.bench.codecs import PARTITION, Timing
from commsched.cli import bench_gpu
from commsched.cli.main import main
from commsched.run.buffers import Buffers
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


@pytest.mark.parametrize("name", gpu.ASKED)
def test_what_is_measured_runs_again_and_again_and_moves_at_least_its_result(name):
    numel = 20_000
    with cpu.kernels():
        work = gpu.made(name, numel, np)
        for _ in range(2):
            work.before()
            work.run()
    per_value = work.fewest / numel
    if name in ("fp16", "bf16"):
        assert per_value == 6
    elif name == PARTITION:
        assert work.fewest == 16 * int(0.01 * numel)
    elif name == gpu.GATHER:  # between what is kept alone and all of the gradient
        assert 0.1 * (4 + 2 + 2 + 2) < per_value < 2 + 0.1 * (4 + 2 + 2)
    else:  # gradient and packet, and what was kept where there is feedback
        assert 4 < per_value < 5.1 or 12 < per_value < 12.5


def test_a_row_of_the_table_has_its_share_of_the_copy_and_its_bar():
    copy = Timing(2e-3, 1e-3, 3e-3)
    selection = gpu.GpuRow(gpu.SELECTION, 10**6, 12 * 10**6, Timing(6e-3, 5e-3, 7e-3), copy, 0, 0.4)
    partition = selection._replace(codec=PARTITION, seconds=Timing(3e-4, 3e-4, 3e-4), asked=0.1)
    rows = [selection, partition]
    assert selection.of_copy == pytest.approx(12 / 6e-3 / (8 / 2e-3))
    cells = [dict(zip(bench_gpu.HEADER, bench_gpu._cells(row, rows), strict=True)) for row in rows]
    assert cells[0]["of copy"] == "50.0%"
    assert cells[0]["asked"] == ">= 40%"
    assert cells[0]["extra memory"] == "0.00x (<= 1.5x)"
    assert cells[1]["asked"] == "< 10% of topk:0.01:sampled, is 5.0%"


def test_messages_are_compared_with_a_copy_and_with_each_other(capsys):
    found = Buffers("GPU", "by its pointers", 10**9, 0.1, 0.125, 0.025)
    bench_gpu.show_buffers(found, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == [
        "copy to pinned memory   10.00 GB/s",
        "through pinned memory   8.00 GB/s, 80.0% of the copy (asked: >= 80%)",
        "by pointers             40.00 GB/s, 5.00x of through pinned memory (asked: >= 3x)",
    ]
    bench_gpu.show_buffers(found._replace(pointed=None), as_json=False)
    assert "this MPI does not take them" in capsys.readouterr().out
