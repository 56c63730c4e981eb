"""`machine fit`: links that are fitted to others' measurements predict what was left out."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commsched.cli.main import main
from commsched.cost.pattern import Places
from commsched.cost.price import price
from commsched.errors import CommschedError
from commsched.exchange.registry import find_method
from commsched.interchange.fit_links import fitted, task
from commsched.interchange.measured_ranks import level_of, ranks_of
from commsched.interchange.micro_benchmarks import ALL_REDUCE, Series, read
from commsched.machine import file
from commsched.machine.relink import scaled_links
from commsched.machine.trust import errors_of
from commsched.net.bucket import BucketSpec
from tests.support import sampling

LOGS = Path("traces/micro-benchmarks")
A100 = LOGS / "all_reduce_perf-2x8-a100.txt"


def made(tmp_path, *words):
    path = tmp_path / "start.json"
    assert main(["machine", "new", *words, "-o", str(path)]) == 0
    return file.read(path)


def link(latency, rate):
    return {"latency_us": latency, "overhead_us": 0.5, "bandwidth_GBps": rate, "source": "test"}


def sums(machine, path, test="all_reduce", group=None):
    """Write the output that nccl-tests would have on a machine."""
    group = group or machine.everyone
    ranks = group.nodes
    lines = [f"# Collective test starting: {test}_perf", "# nThread 1 nGpus 1 minBytes 8"]
    lines += [f"#  Rank {r} Group 0 Pid 1 on host{n} device 0 [0] GPU" for r, n in enumerate(ranks)]
    for size in 8 * 4 ** np.arange(14):
        spec = BucketSpec.uniform(int(size) // 4)
        us = 1e6 * price(find_method("native+dense"), spec, machine, group).exchange
        rates = size / us / 1e3, size / us / 1e3 * 2 * (len(ranks) - 1) / len(ranks)
        row = f"{us:.2f} {rates[0]:.2f} {rates[1]:.2f} 0"
        lines.append(f"{size} {size // 4} float sum -1 {row} {row}")
    path.write_text("\n".join([*lines, "# Avg bus bandwidth    : 1.0"]))
    return path


@pytest.mark.by_day(1)
@pytest.mark.parametrize("nodes", ["1", "2", "8"] if sampling.whole else ["1", "2"])
def test_the_links_of_which_a_library_made_its_sums_are_found(nodes, tmp_path):
    words = ["--nodes", nodes, "--gpus", "4", "--gpu", "a100", "--net", "100 Gbit/s"]
    truth = replace(made(tmp_path, *words, "--ports", "4"), native=())
    log = sums(truth, tmp_path / "log.txt")
    off = {"latency inside": 1.5, "latency between": 0.5, "bytes inside": 2.0, "bytes between": 2.5}
    (series,) = read(log)
    found = fitted(start := scaled_links(truth, off), [task(start, series)]).machine
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
    found = fitted(start, [task(start, series)]).machine
    assert found.between.latency + 2 * found.between.overhead == pytest.approx(10e-6, rel=0.05)
    assert found.between.per_byte == pytest.approx(1 / 5e9, rel=0.05)
    assert found.nic.per_byte == pytest.approx(1 / 5e9, rel=0.05)
    assert found.inside == start.inside
    inner = made(tmp_path, "--nodes", "1", "--gpus", "2", "--gpu", "a100", "--net", "10 Gbit/s")
    found = fitted(inner, [task(inner, series, "inside")]).machine
    assert found.inside.per_byte == pytest.approx(1 / 5e9, rel=0.05)


@pytest.mark.by_day(0)
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


TREE = {
    "format": "commsched-machine/1",
    "name": "hall",
    "source": "test",
    "library": "nccl",
    "levels": [
        {"name": "node", "children": 4, "link": link(2.4, 300)},
        {
            "name": "rack",
            "children": 2,
            "link": link(8, 12.5),
            "nic": {"per_node": 4, "bandwidth_GBps": 12.5, "source": "test"},
        },
        {"name": "row", "children": 2, "link": link(12, 10), "oversubscription": 2},
        {"name": "hall", "children": 2, "link": link(30, 5), "oversubscription": 2},
    ],
    "device": {
        "name": "A100",
        "memory_GB": 40,
        "bandwidth_GBps": 1555,
        "tflops": 312,
        "source": "test",
    },
}
OFF = {"node": (1.4, 0.6), "rack": (0.5, 1.7), "row": (1.6, 1.3), "hall": (0.7, 0.5)}


@pytest.fixture
def tree(tmp_path):
    path = tmp_path / "hall.json"
    path.write_text(json.dumps(TREE))
    return file.read(path)


def messages(machine, ranks, path):
    """Write the output that OSU's tests would have between two ranks of a machine."""
    wire = Places(machine, machine.group(ranks)).wire(np.array([0]), np.array([1]))
    sizes = 4.0 ** np.arange(12)
    us = [1e6 * wire.drained(np.array([size]))[0] for size in sizes]
    busy = [1e6 * (wire.port(np.array([size])) - wire.overhead)[0] for size in sizes]
    lines = [
        "# OSU MPI Latency Test v7.1",
        *(f"{n:.0f} {t:.6f}" for n, t in zip(sizes, us, strict=True)),
    ]
    lines += ["# OSU MPI Bandwidth Test v7.1"]
    lines += [f"{n:.0f} {n / t:.6f}" for n, t in zip(sizes, busy, strict=True)]
    path.write_text("\n".join(lines))
    return path


def shifted(machine):
    """Return a machine whose levels are off by OFF."""
    factors = {f"latency {name}": by for name, (by, _) in OFF.items()}
    return scaled_links(machine, factors | {f"bytes {name}": by for name, (_, by) in OFF.items()})


def close(found, truth, latency=0.02, rate=0.02):
    """Ask that every level has the latency and rate of another machine."""
    for mine, wanted in zip(found.levels, truth.levels, strict=True):
        far = mine.link.latency + 2 * mine.link.overhead
        assert far == pytest.approx(wanted.link.latency + 2 * wanted.link.overhead, rel=latency)
        assert mine.link.per_byte == pytest.approx(wanted.link.per_byte, rel=rate)


def test_messages_of_each_level_give_its_latency_and_rate(tree, tmp_path, capsys):
    size = {"node": 1, "rack": 4, "row": 8, "hall": 16}
    start = tmp_path / "start.json"
    file.write(start, shifted(tree))
    logs = [f"{name}={messages(tree, (0, n), tmp_path / name)}" for name, n in size.items()]
    assert main(["machine", "fit", *logs, "--machine", str(start), "-o", str(start)]) == 0
    close(file.read(start), tree)
    said = capsys.readouterr().out
    assert "OSU's Latency of 2 x 1 ranks" in said
    for name in size:
        assert float(re.search(rf"{name}: 5 held-out.* maximum ([\d.]+)%", said)[1]) < 1


@pytest.mark.by_day(0)  # it fits sums on 32 ranks
def test_sums_of_each_level_give_its_latency_and_rate(tree, tmp_path):
    """A ring of NCCL shows a level by its hops: each log adds the next level to the ring."""
    counts = {"node": (1, 4), "rack": (2, 4), "row": (4, 4), "hall": (8, 4)}
    tasks = []
    start = shifted(tree)
    for name, (nodes, lanes) in counts.items():
        part = tree.group(range(nodes * lanes))
        (series,) = read(sums(tree, tmp_path / name, group=part))
        tasks.append(task(start, series, name))
        assert tasks[-1].group.ranks == part.ranks
    found, errors = fitted(start, tasks)
    assert list(errors) == list(counts)
    assert max(np.median(np.abs(some)) for some in errors.values()) < 0.01
    close(found, tree, 0.1, 0.1)
    assert found.native[-1] == pytest.approx(tasks[-1].series.points[-1])


def test_the_ranks_of_a_log_lie_in_all_children_of_its_level(tree):
    def ranks(name, *lanes):
        return ranks_of(tree, level_of(tree, name), series._replace(lanes=lanes))

    series = Series("log", ALL_REDUCE, "sum", ((8.0, 1.0),))
    assert ranks("node", 2) == (0, 1)
    assert ranks("rack", 1, 1) == (0, 4)
    assert ranks("rack", 4, 4) == tuple(range(8))
    assert ranks("row", 1, 1) == (0, 8)
    assert ranks("row", 2, 2, 2, 2) == (0, 1, 4, 5, 8, 9, 12, 13)
    assert ranks("hall", *[4] * 8) == tuple(range(32))
    assert ranks("row") == tuple(range(16))
    message = series._replace(kind="message")
    assert ranks_of(tree, 3, message) == (0, 16)


@pytest.mark.by_day(0)
def test_a_published_log_is_that_of_a_level(tmp_path, capsys):
    node, rack, *_ = TREE["levels"]
    start = tmp_path / "hall.json"
    start.write_text(json.dumps(TREE | {"levels": [node | {"children": 8}, rack]}))
    assert (
        main(
            ["machine", "fit", f"rack={A100}", "--machine", str(start), "-o", str(start), "--json"]
        )
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert np.median(np.abs(told["held_out_errors_of"]["rack"])) < 0.1
    assert told["levels"]["node"]["bandwidth_GBps"] == 300
    assert told["levels"]["rack"]["bandwidth_GBps"] > 20


@pytest.mark.by_day(0)
def test_of_a_machine_of_nodes_a_log_may_be_of_the_links_between_them(tmp_path):
    start = made(tmp_path, "--nodes", "2", "--gpus", "1", "--gpu", "a100", "--net", "10 Gbit/s")
    path, log = str(tmp_path / "start.json"), LOGS / "osu-2x1-c3.txt"
    found = []
    for word in (f"between={log}", str(log)):
        file.write(path, start)
        assert main(["machine", "fit", word, "--machine", path, "-o", path]) == 0
        found.append(file.read(path))
    assert found[0] == found[1] != start


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rakc", "hall has no level 'rakc'; its levels are node, rack, row, hall; nearest: 'rack'"),
        ("node", "do not spread evenly over children of level 'node' of hall (4 of 1 ranks)"),
    ],
)
def test_a_log_of_no_such_level_is_refused(name, said, tree, tmp_path, capsys):
    start = tmp_path / "hall.json"
    logs = [f"{name}={A100}", "--machine", str(start), "-o", str(start)]
    assert main(["machine", "fit", *logs]) == 2
    assert said in capsys.readouterr().err


def test_a_rate_needs_long_messages(tmp_path):
    start = made(tmp_path, "--nodes", "2", "--gpus", "1", "--gpu", "a100", "--net", "10 Gbit/s")
    log = tmp_path / "osu.txt"
    log.write_text("# OSU MPI Bandwidth Test v7.1\n# Size  Bandwidth (MB/s)\n")
    with log.open("a") as file:
        file.write("1 0.00\n" + "".join(f"{2**k} {2**k / 40}\n" for k in range(11, 16)))
    (series,) = read(log)
    assert [size for size, _ in series.points] == [2**k for k in range(11, 16)]
    with pytest.raises(CommschedError, match=r"no size of 65.54 kB or more.*measure larger ones"):
        fitted(start, [task(start, series)])


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
