"""`machine fit`: logs of other tests, and logs that show too little, are refused in a sentence."""

import re

import pytest

from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.interchange.micro_benchmarks import read
from commsched.machine import file

SIZES = tuple(4**k for k in range(4, 14))


def nccl(path, hosts, ratio, operation="sum", root=-1, name="", sizes=SIZES):
    """Write the output of nccl-tests: 10 us and 12 GB/s; hosts: ranks of each."""
    ranks = [f"host{n}" for n, lanes in enumerate(hosts) for _ in range(lanes)]
    lines = [f"# Collective test starting: {name}"] if name else []
    lines += ["# nThread 1 nGpus 1 minBytes 8"]
    lines += [f"#  Rank {r} Group 0 Pid 1 on {host} device 0" for r, host in enumerate(ranks)]
    for size in sizes:
        us = 10 + size / 12e3
        row = f"{us:.2f} {size / us / 1e3:.2f} {size / us / 1e3 * ratio:.2f} 0"
        lines.append(f"{size} {size // 4} float {operation} {root} {row} {row}")
    path.write_text("\n".join([*lines, "# Avg bus bandwidth    : 1.0"]))
    return path


@pytest.mark.parametrize(
    ("hosts", "ratio", "operation", "root"),
    [
        ((8,) * 8, 63 / 64, "none", -1),  # all_gather or alltoall
        ((8,) * 2000, 1.0, "none", -1),  # the digits leave open what it is
        ((1, 1), 1.0, "sum", 0),  # reduce
        ((1, 1), 0.5, "sum", -1),  # reduce_scatter
        ((), 1.0, "none", -1),
    ],
)
def test_an_unnamed_log_of_another_test_is_not_taken_for_one_that_is_read(
    hosts, ratio, operation, root, tmp_path
):
    with pytest.raises(CommschedError, match="has an unnamed test of nccl-tests; those of"):
        read(nccl(tmp_path / "log.txt", hosts, ratio, operation, root))


@pytest.mark.parametrize("hosts", [(1, 1), (8, 8), (8,) * 16])
def test_an_unnamed_log_is_told_by_the_ratio_of_its_bandwidths(hosts, tmp_path):
    ranks = sum(hosts)
    (found,) = read(nccl(tmp_path / "sum.txt", hosts, 2 * (ranks - 1) / ranks))
    assert found.kind == "all-reduce"
    (found,) = read(nccl(tmp_path / "sends.txt", hosts, 1.0, "none"))
    assert found.kind == "shift"


def stream(path, sizes):
    """Write the output of osu_bw at 40 MB/s, where it was measured."""
    lines = ["# OSU MPI Bandwidth Test v7.1", *(f"{size} {rate}" for size, rate in sizes)]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def refused(tmp_path, capsys):
    """Fit a machine of two nodes by some words, and return what is said."""
    start, out = tmp_path / "start.json", tmp_path / "out.json"
    words = ["--nodes", "2", "--gpus", "1", "--gpu", "a100", "--net", "10 Gbit/s"]
    assert main(["machine", "new", *words, "-o", str(start)]) == 0

    def fit(*logs):
        words = ["machine", "fit", *map(str, logs), "--machine", str(start), "-o", str(out)]
        capsys.readouterr()
        assert main(words) == 2
        assert not out.exists()
        return capsys.readouterr().err

    return fit


def test_a_stream_with_one_size_to_fit_to_is_refused(refused, tmp_path):
    log = stream(tmp_path / "log.txt", [(2**k, 40.0) for k in (*range(8), 16)])
    said = "Bandwidth has 1 size of 65.54 kB or more, and a link is fitted to 2 of these at least"
    assert said in refused(log)


def test_a_size_that_is_measured_four_times_counts_once(refused, tmp_path):
    log = nccl(tmp_path / "log.txt", (1, 1), 1.0, name="all_reduce_perf", sizes=(2**28,) * 4)
    said = "1 size after '# Collective test starting: all_reduce_perf', and 4 are needed"
    assert said in refused(log)


def test_a_log_that_shows_no_link_is_refused(refused, tmp_path):
    log = nccl(tmp_path / "log.txt", (1,), 0.0, name="all_reduce_perf")
    assert "all-reduce of one rank shows nothing of a link; measure 2 or more" in refused(log)
    log = nccl(tmp_path / "log.txt", (1, 1), 1.0, name="all_reduce_perf")
    for words in (("--inside", log), (f"inside={log}",)):
        told = refused(*words)
        assert "measured on 2 hosts, and a log of links inside" in told
        assert f"nearest: between={log}" in told


def test_a_log_of_one_node_shows_no_link_between_nodes(refused, tmp_path):
    said = "a log of links between nodes is of two nodes or more"
    assert said in refused(
        f"between={nccl(tmp_path / 'log.txt', (2,), 1.0, name='all_reduce_perf')}"
    )
    log = stream(tmp_path / "osu.txt", [(4**k, 40.0) for k in range(4, 12)])
    assert said in refused(f"between={log}", "--nodes", "1")


def test_a_message_of_osu_is_of_two_ranks(tmp_path, capsys):
    path = str(tmp_path / "lab.json")
    log = str(stream(tmp_path / "osu.txt", [(4**k, 40.0) for k in range(4, 12)]))
    words = ["--nodes", "3", "--gpus", "4", "--gpu", "a100", "--net", "10 Gbit/s"]
    assert main(["machine", "new", *words, "-o", path]) == 0
    for words, said in (
        ([log], "2 x 1"),
        (["--inside", log], "1 x 2"),
        ([log, "--nodes=1"], "1 x 2"),
    ):
        assert main(["machine", "fit", *words, "--machine", path, "-o", path]) == 0
        assert f"OSU's Bandwidth of {said} ranks, 4 sizes" in capsys.readouterr().out


def test_links_whose_bytes_cost_nothing_are_made_and_fitted(tmp_path, capsys):
    path, log = str(tmp_path / "free.json"), tmp_path / "osu.txt"
    words = ["--nodes", "2", "--gpus", "2", "--gpu", "a100", "--net", "10 Gbit/s"]
    free = [f"--set=links.{place}.bandwidth_GBps=null" for place in ("inside", "between")]
    assert main(["machine", "new", *words, *free, "-o", path]) == 0
    assert ", free bytes between two of a node" in capsys.readouterr().out
    rows = [f"{4**k} 50" for k in range(6)]
    log.write_text("\n".join(["# OSU MPI Latency Test v7.1", *rows]))
    assert main(["machine", "fit", str(log), "--machine", path, "-o", path]) == 0
    assert re.search(r"30 us -> .*, free bytes -> free bytes\n", capsys.readouterr().out)


def test_links_that_no_log_shows_stay_as_they_are(tmp_path):
    path, log = str(tmp_path / "two.json"), "traces/micro-benchmarks/osu-2x1-c3.txt"
    words = ["--nodes", "2", "--gpus", "1", "--gpu", "a100", "--net", "100 Gbit/s"]
    assert main(["machine", "new", *words, "-o", path]) == 0
    before = file.read(path)
    assert main(["machine", "fit", log, "--machine", path, "-o", path]) == 0
    after = file.read(path)
    assert after.inside == before.inside
    assert after.between.source == "fitted to osu-2x1-c3.txt"


def test_a_validation_of_osu_is_no_time(tmp_path):
    log = tmp_path / "osu.txt"
    rows = [f"{4**k} {2 + k:.2f} Pass" for k in range(6)]
    log.write_text("\n".join(["# OSU MPI Latency Test v7.3", "# Size Latency Validation", *rows]))
    (found,) = read(log)
    assert found.points == tuple((4.0**k, pytest.approx((2 + k) * 1e-6)) for k in range(6))
    log.write_text(log.read_text().replace("7.00 Pass", "7.00 Fail"))
    with pytest.raises(CommschedError, match=r"the validation of 1024 B failed"):
        read(log)


PLAIN = "time algbw busbw #wrong"
SPREAD = f"{PLAIN} i_min i_max i_p99 i_cv%"


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (f"{PLAIN} {PLAIN} timestamp", "{} 7 8 0 {} 7 8 0 2026-01-02 03:04:05"),
        (f"{SPREAD} {SPREAD}", "{} 7 8 0 1 3 3 9 {} 7 8 0 1 3 3 9"),
        (f"{SPREAD} {SPREAD} timestamp", "{} 7 8 0 1 3 3 9 {} 7 8 0 1 3 3 9 2026-01-02 03:04:05"),
        (f"{PLAIN} {PLAIN}", "{} 7 8 N/A {} 7 8 N/A"),
    ],
)
def test_the_header_of_nccl_tests_says_which_column_is_the_time(columns, row, tmp_path):
    log = tmp_path / "log.txt"
    lines = ["# Collective test starting: all_reduce_perf"]
    lines += ["10-0-1-2:14:14 [0] NCCL INFO NET/IB", f"# size count type redop root {columns}"]
    lines += [f"{size} {size // 4} float sum -1 {row.format(99, size / 8)}" for size in SIZES]
    log.write_text("\n".join(lines))
    (found,) = read(log)
    assert found.points == tuple((size, pytest.approx(size / 8e6)) for size in SIZES)


def test_wrong_sums_times_of_calls_and_several_groups_are_refused(tmp_path):
    text = nccl(tmp_path / "log.txt", (2, 2), 1.5, name="all_reduce_perf").read_text()
    log = tmp_path / "other.txt"
    log.write_text(text.replace(" 0\n1024 ", " 4\n1024 "))
    with pytest.raises(CommschedError, match=r"validation of 256 B failed; a link is fitted"):
        read(log)
    calls = PLAIN.replace("time", "cputime")
    log.write_text(text.replace("\n256 ", f"\n# size count type redop root {calls} {calls}\n256 "))
    with pytest.raises(CommschedError, match="times are those of the host's calls; run the test"):
        read(log)
    log.write_text(text.replace("Rank 1 Group 0", "Rank 1 Group 1"))
    with pytest.raises(CommschedError, match="several groups of ranks were measured at once"):
        read(log)


def message(path, latency, rate, torn=0):
    """Write the output of osu_latency: s and B/s; the last `torn` characters are missing."""
    sizes = [0, *(2**k for k in range(23))]
    rows = [f"{size:<20d}{1e6 * (latency + size / rate):10.2f}" for size in sizes]
    text = "\n".join(["# OSU MPI Latency Test v7.0", "# Size          Latency (us)", *rows])
    path.write_text(text[: len(text) - torn])
    return path


@pytest.mark.parametrize("changes", [(), ("latency_us=0",), ("latency_us=0", "overhead_us=0")])
@pytest.mark.parametrize("latency", [1.1e-6, 10e-6])
def test_links_are_fitted_from_wherever_they_begin(changes, latency, tmp_path):
    path, log = str(tmp_path / "two.json"), message(tmp_path / "osu.txt", latency, 8e9)
    words = ["--nodes", "2", "--gpus", "1", "--gpu", "a100", "--net", "100 Gbit/s"]
    words += [f"--set=links.between.{change}" for change in changes]
    assert main(["machine", "new", *words, "-o", path]) == 0
    assert main(["machine", "fit", str(log), "--machine", path, "-o", path]) == 0
    link = file.read(path).between
    assert link.latency + 2 * link.overhead == pytest.approx(latency, rel=0.02)
    assert link.per_byte == pytest.approx(1 / 8e9, rel=0.01)


@pytest.mark.parametrize("torn", [1, 3])
def test_a_torn_row_of_osu_is_left_out(torn, tmp_path):
    whole = read(message(tmp_path / "whole.txt", 10e-6, 8e9))[0]
    (found,) = read(message(tmp_path / "torn.txt", 10e-6, 8e9, torn))
    assert (whole.torn, found.torn) == (False, True)
    assert found.points == whole.points[:-1]
