"""`machine fit`: links that are fitted to others' measurements predict what was left out."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commsched.cli.main import main
from commsched.cost.price import price
from commsched.exchange.registry import find_method
from commsched.interchange.fit_links import fitted, task
from commsched.interchange.micro_benchmarks import read
from commsched.machine import file
from commsched.machine.relink import scaled_links
from commsched.machine.trust import errors_of
from commsched.net.bucket import BucketSpec

LOGS = Path("traces/micro-benchmarks")
A100 = LOGS / "all_reduce_perf-2x8-a100.txt"


def made(tmp_path, *words):
    path = tmp_path / "start.json"
    assert main(["machine", "new", *words, "-o", str(path)]) == 0
    return file.read(path)


def sums(machine, path, test="all_reduce"):
    """Write the output that nccl-tests would have on a machine."""
    ranks = machine.node_of_rank
    lines = [f"# Collective test starting: {test}_perf", "# nThread 1 nGpus 1 minBytes 8"]
    lines += [f"#  Rank {r} Group 0 Pid 1 on host{n} device 0 [0] GPU" for r, n in enumerate(ranks)]
    for size in 8 * 4 ** np.arange(14):
        spec = BucketSpec.uniform(int(size) // 4)
        us = 1e6 * price(find_method("native+dense"), spec, machine, machine.everyone).exchange
        rates = size / us / 1e3, size / us / 1e3 * 2 * (len(ranks) - 1) / len(ranks)
        row = f"{us:.2f} {rates[0]:.2f} {rates[1]:.2f} 0"
        lines.append(f"{size} {size // 4} float sum -1 {row} {row}")
    path.write_text("\n".join([*lines, "# Avg bus bandwidth    : 1.0"]))
    return path


@pytest.mark.parametrize("nodes", ["1", "2", "8"])
def test_the_links_of_which_a_library_made_its_sums_are_found(nodes, tmp_path):
    words = ["--nodes", nodes, "--gpus", "4", "--gpu", "a100", "--net", "100 Gbit/s"]
    truth = replace(made(tmp_path, *words, "--ports", "4"), native=())
    log = sums(truth, tmp_path / "log.txt")
    off = {"latency inside": 1.5, "latency between": 0.5, "bytes inside": 2.0, "bytes between": 2.5}
    (series,) = read(log)
    found = fitted(start := scaled_links(truth, off), [task(start, series, inside=False)])
    errors = np.abs(errors_of(found))
    assert np.median(errors) < 0.03
    assert (errors > 0.05).sum() <= 1  # where the library takes another protocol
    assert found.native[-1] == pytest.approx(series.points[-1])


def test_a_message_takes_latency_and_bytes(tmp_path):
    start = made(tmp_path, "--nodes", "2", "--gpus", "1", "--gpu", "a100", "--net", "10 Gbit/s")
    rows = [(size, 10 + size / 5e3) for size in (0, 1, 64, 4096, 65536, 2**20, 2**22)]  # 5 GB/s
    log = tmp_path / "osu.txt"
    text = "# OSU MPI-CUDA Latency Test v7.1\n# Size  Latency (us)\n"
    log.write_text(text + "\n".join(f"{size} {us:.3f}" for size, us in rows))
    (series,) = read(log)
    found = fitted(start, [task(start, series, inside=False)])
    assert found.between.latency + 2 * found.between.overhead == pytest.approx(10e-6, rel=0.05)
    assert found.between.per_byte == pytest.approx(1 / 5e9, rel=0.05)
    assert found.nic.per_byte == pytest.approx(1 / 5e9, rel=0.05)
    assert found.inside == start.inside
    inner = made(tmp_path, "--nodes", "1", "--gpus", "2", "--gpu", "a100", "--net", "10 Gbit/s")
    found = fitted(inner, [task(inner, series, inside=True)])
    assert found.inside.per_byte == pytest.approx(1 / 5e9, rel=0.05)


def test_sums_of_sixteen_a100_are_predicted_where_they_were_left_out(tmp_path, capsys):
    words = ["--nodes", "2", "--gpus", "8", "--gpu", "a100", "--net", "100 Gbit/s", "--ports", "16"]
    made(tmp_path, *words)
    path = str(tmp_path / "start.json")
    assert main(["machine", "fit", str(A100), "--machine", path, "-o", path]) == 0
    said = capsys.readouterr().out
    assert "all-reduce of 2 x 8 ranks, 31 sizes from 8 B to 8.59 GB" in said
    assert float(re.search(r"10 held-out exchanges: median error ([\d.]+)%", said)[1]) < 8
    assert "fitted to all_reduce_perf-2x8-a100.txt" in file.read(path).between.source


def test_several_tests_of_one_file_are_read():
    found = read(LOGS / "osu-2x1-c3.txt")
    assert [one.kind for one in found] == ["all-reduce", "message", "stream"]
    assert found[1].points[0] == (0.0, pytest.approx(19.17e-6))
    assert found[2].points[-1] == (4194304.0, pytest.approx(4194304 / 5939.5e6))


BROKEN = [
    (lambda text: text[:2000], "0 sizes after"),
    (lambda text: text[: text.index(" 64 ")], "3 sizes after"),
    (
        lambda text: text.replace("sum      -1", "none      0"),
        "has an unnamed test of nccl-tests; those of",
    ),
    (lambda text: text.replace("worker-1", "worker-2", 1), "different numbers of ranks"),
    (lambda text: text.replace("#", "-"), "has no test's output"),
]


@pytest.mark.parametrize(("spoil", "said"), BROKEN)
def test_output_that_cannot_be_used_is_one_sentence(spoil, said, tmp_path, capsys):
    made(tmp_path, "--nodes", "2", "--gpus", "8", "--gpu", "a100", "--net", "100 Gbit/s")
    log, path = tmp_path / "log.txt", str(tmp_path / "start.json")
    log.write_text(spoil(A100.read_text()))
    capsys.readouterr()
    assert main(["machine", "fit", str(log), "--machine", path, "-o", path]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
