"""`commsched export`: what was written is read again, by parsers and by a LogGP simulator."""

import csv
import gzip
import importlib.util
import io
import json
import re
import shutil
from collections import defaultdict

import numpy as np
import pytest

from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.exchange.registry import METHODS
from commsched.interchange import tasks as task_lists
from commsched.interchange.export import EXPORTS
from commsched.interchange.tasks import TaskKind, tasks
from commsched.lab.bench.simulators import plans
from commsched.plan import file as plan_file
from commsched.plan.model import Plan
from commsched.program.registry import STRATEGIES
from commsched.simulate.engine import simulate
from tests.support.small_plans import graph, machine, plan
from tests.support.strategy_plans import small

SIZES = [3000, 50_000, 7]
METHODS_SEEN = (
    "native+dense",
    "ring+dense",
    "direct+dense",
    "halving-doubling+fp16",
    "all-gather+dgc:0.02:1",  # whose first steps have other densities
    "hierarchical+dense",
    "tree+coo",
    "all-gather+topk:0.01",
    *METHODS,
)
LINE = re.compile(r"l(\d+): (?:calc (\d+)|(send|recv) (\d+)b (?:to|from) (\d+) tag (\d+))")


def made(method: str, nodes: int = 2, lanes: int = 2) -> Plan:
    return plan(graph(SIZES), machine(nodes, lanes), [method], bucket=1e5)


def parsed(text: str):
    """The lines of a GOAL file: by rank, number -> (kind, amount, peer, tag), and `after`."""
    head, *blocks = re.split(r"^rank (\d+) \{$", text, flags=re.MULTILINE)
    assert head.split() == ["num_ranks", str(len(blocks) // 2)]
    ranks = []
    for number, block in zip(blocks[::2], blocks[1::2], strict=True):
        assert int(number) == len(ranks)
        lines, after = {}, defaultdict(set)
        for line in block.strip().removesuffix("}").split("\n"):
            if " requires " in line:
                one, other = (int(word[1:]) for word in line.split(" requires "))
                assert other in lines
                after[one].add(other)
            elif line:
                found = LINE.fullmatch(line)
                label, calc, kind, size, peer, tag = found.groups()
                amount = int(calc or size)
                lines[int(label)] = kind or "calc", amount, int(peer or -1), int(tag or -1)
        ranks.append((lines, after))
    return ranks


def pairs(ranks):
    """Every send with its receive: (source, number), (target, number), bytes; none is left over."""
    ends = {"send": {}, "recv": {}}
    for rank, (lines, _) in enumerate(ranks):
        for number, (kind, amount, peer, tag) in lines.items():
            if kind != "calc":
                key = (rank, peer, tag) if kind == "send" else (peer, rank, tag)
                assert key not in ends[kind], "two messages of one tag"
                ends[kind][key] = (rank, number), amount
    assert ends["send"].keys() == ends["recv"].keys()
    for key, (one, amount) in ends["send"].items():
        other, expected = ends["recv"][key]
        assert amount == expected
        yield one, other, amount


def played(ranks, on, apart=False):
    """When the last task ends, in s: LogGP with a port of each rank in both directions.

    Work waits for what it requires only, as the work of a stream requires what came before it.
    apart: links inside nodes and between them have ports of their own.
    """
    to = {one: other for one, other, _ in pairs(ranks)}
    ends, came, free = {}, {}, defaultdict(float)
    waiting = [(rank, number) for rank, (lines, _) in enumerate(ranks) for number in lines]
    while waiting:
        left = []
        for rank, number in waiting:
            lines, after = ranks[rank]
            kind, amount, peer, _ = lines[number]
            known = all((rank, other) in ends for other in after[number])
            if not known or (kind == "recv" and (rank, number) not in came):
                left.append((rank, number))
                continue
            ready = max((ends[rank, other] for other in after[number]), default=0.0)
            if kind == "calc":
                ends[rank, number] = ready + amount / 1e9
                continue
            link = on.inside if on.node_of_rank[rank] == on.node_of_rank[peer] else on.between
            busy, port = amount * link.per_byte + link.overhead, (rank, kind, apart and link)
            leaves = max(ready, free[port]) if kind == "send" else 0.0
            if kind == "send":
                free[port] = ends[rank, number] = leaves + busy
                came[to[rank, number]] = leaves + link.overhead + link.latency
            else:
                first = max(came[rank, number], free[port])
                ends[rank, number] = free[port] = first + busy
        assert len(left) < len(waiting), "ranks wait for each other"
        waiting = left
    return max(ends.values())


def assert_bytes_are_those_of(made_plan, ranks, steps):
    """Every rank sends what the prediction says, in whole bytes of expected sizes."""
    sent, want = np.zeros((2, made_plan.machine.size))
    for (source, _), _, amount in pairs(ranks):
        sent[source] += amount
    for placed in simulate(made_plan, steps).placed:
        want[placed.ranks] += placed.sent
    messages = sum(1 for _ in pairs(ranks))
    np.testing.assert_allclose(sent, want, atol=0.5 * messages)


@pytest.mark.by_day(10)
@pytest.mark.parametrize("method", METHODS_SEEN)
def test_every_send_has_its_receive_and_bytes_are_those_of_the_plan(method, tmp_path):
    made_plan = made(method)
    (path,) = EXPORTS["goal"].write(tasks(made_plan, 2), tmp_path, "plan")
    ranks = parsed(path.read_text())
    assert_bytes_are_those_of(made_plan, ranks, 2)
    assert played(ranks, made_plan.machine) > 0


@pytest.mark.parametrize(
    "method",
    ["ring+dense", "direct+dense", "ring+fp16", "doubling+dense", "mask", "node-union"],
)
@pytest.mark.parametrize("steps", [1, 3])
def test_a_simulator_of_the_text_predicts_what_ours_does(method, steps, tmp_path):
    """To the ns to which the text rounds each task."""
    made_plan = made(method)
    (path,) = EXPORTS["goal"].write(tasks(made_plan, steps), tmp_path, "plan")
    ranks = parsed(path.read_text())
    want = max(placed.end.max() for placed in simulate(made_plan, steps).placed)
    most = max(len(lines) for lines, _ in ranks)
    assert played(ranks, made_plan.machine) == pytest.approx(want, abs=most * 1e-9)


@pytest.mark.by_day(8)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("shape", [(2, 2), (3, 2)])
def test_ranks_of_every_strategy_send_what_they_receive_and_end(strategy, shape, tmp_path):
    """To 1 %: an exchange over both kinds of links has one port for them in ours."""
    made_plan, steps = small(strategy, *shape), 8
    (path,) = EXPORTS["goal"].write(tasks(made_plan, steps), tmp_path, "plan")
    ranks = parsed(path.read_text())
    assert_bytes_are_those_of(made_plan, ranks, steps)
    predicted = max(placed.end.max() for placed in simulate(made_plan, steps).placed)
    assert played(ranks, made_plan.machine, apart=True) == pytest.approx(predicted, rel=0.01)


def test_a_table_has_a_row_per_task(tmp_path):
    ranks = tasks(made("ring+fp16"))
    (path,) = EXPORTS["csv"].write(ranks, tmp_path, "plan")
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) == sum(map(len, ranks))
    sends = [task for rank in ranks for task in rank if task.kind is TaskKind.SEND]
    assert sum(int(row["bytes"]) for row in rows if row["kind"] == "send") == sum(
        task.nbytes for task in sends
    )
    assert {row["name"] for row in rows if row["kind"] == "receive"} == {
        f"b{b}/exchange {k} receive"
        for b in range(len(made("ring+fp16").launches))
        for k in range(6)
    }


chakra = pytest.mark.skipif(
    importlib.util.find_spec("google") is None, reason="pip install '.[chakra]'"
)


@chakra
def test_chakra_traces_hold_the_same_tasks(tmp_path):
    from commsched.interchange import chakra_messages, content

    ranks = tasks(made("ring+dense"))
    paths = EXPORTS["chakra"].write(ranks, tmp_path, "plan")
    assert [path.name for path in paths] == [f"plan.{rank}.et" for rank in range(4)]
    for rank, path in enumerate(paths):
        found = chakra_messages.nodes(content.read(path))
        assert len(found) == len(ranks[rank])
        for node, task in zip(found, ranks[rank], strict=True):
            assert (node.name, node.seconds) == (task.name, pytest.approx(task.seconds, abs=6e-7))
            assert node.inputs == tuple(number + 1 for number in task.after)
            assert node.on_host == (task.kind is TaskKind.WORK and task.stream != "compute")
            if task.kind is TaskKind.SEND:
                ends = {"comm_src": rank, "comm_dst": task.peer, "comm_tag": task.tag}
                assert node.facts == {"is_cpu_op": 0, "comm_size": task.nbytes, **ends}


@chakra
def test_all_reduces_in_one_node_are_imported_as_a_net_of_the_same_bytes(tmp_path, capsys):
    path, net = tmp_path / "plan.json", tmp_path / "net.json"
    plan_file.write(path, made("ring+dense"))
    words = ["export", str(path), "--to", "chakra", "--collectives", "-o", str(tmp_path / "et")]
    assert main(words) == 0
    assert main(["import", str(tmp_path / "et" / "plan.1.et"), "-o", str(net)]) == 0
    capsys.readouterr()
    assert main(["show", str(net), "--json"]) == 0
    layers = json.loads(capsys.readouterr().out)["layers"]
    assert sum(t["shape"][0] for layer in layers for t in layer["tensors"]) == sum(SIZES)


@chakra
def test_a_trace_of_several_steps_is_not_imported_as_one(tmp_path, capsys):
    path, folder = tmp_path / "plan.json", tmp_path / "et"
    plan_file.write(path, made("ring+dense"))
    words = ["export", str(path), "--to", "chakra", "--collectives", "--steps", "3"]
    assert main([*words, "-o", str(folder)]) == 0
    assert main(["import", str(folder / "plan.1.et"), "-o", str(tmp_path / "net.json")]) == 2
    said = "plan.1.et: the trace is of several steps; record or export one step\n"
    assert capsys.readouterr().err.endswith(said)
    for steps, status in (("3", 2), ("1", 0)):
        assert main([*words[:-1], steps, "-o", str(folder)]) == 0
        trace = folder / "plan.1.et"
        trace.write_bytes(trace.read_bytes().replace(b"forward", b"kernels"))
        capsys.readouterr()
        assert main(["import", str(trace), "-o", str(tmp_path / "net.json")]) == status
        assert capsys.readouterr().err.endswith(said) == (status == 2)


def test_the_command_says_what_it_wrote(tmp_path, capsys):
    path = tmp_path / "plan.json"
    plan_file.write(path, made("ring+dense"))
    assert main(["export", str(path), "--to", "goal", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["files"] == [str(tmp_path / "plan.goal")]
    assert told["messages"] == 4 * 6 * len(made("ring+dense").launches)
    assert main(["export", str(path), "--to", "csv"]) == 0
    assert capsys.readouterr().out.endswith(f"written to {tmp_path / 'plan.csv'}\n")
    for words, said in (
        (["--to", "gaol"], "nearest: 'goal'"),
        (["--to", "goal", "--steps", "0"], "--steps must be at least 1"),
        (["--to", "csv", "--collectives"], "--collectives is for chakra"),
    ):
        assert main(["export", str(path), *words]) == 2
        assert said in capsys.readouterr().err


def test_files_have_the_name_of_a_packed_plan_or_stdin(tmp_path, monkeypatch, capsys):
    path = tmp_path / "plan.of.json.gz"
    plan_file.write(path, made("ring+dense"))
    monkeypatch.setattr(
        "sys.stdin", io.TextIOWrapper(io.BytesIO(gzip.decompress(path.read_bytes())))
    )
    for words, name in (([str(path)], "plan.of.csv"), (["-", "-o", str(tmp_path)], "stdin.csv")):
        assert main(["export", *words, "--to", "csv"]) == 0
        assert capsys.readouterr().out.endswith(f"written to {tmp_path / name}\n")
    assert (tmp_path / "stdin.csv").read_text() == (tmp_path / "plan.of.csv").read_text()


def test_what_cannot_be_written_is_one_sentence(monkeypatch):
    with pytest.raises(CommschedError, match="b0/exchange is no all-reduce of float32"):
        tasks(made("ring+fp16"), collectives=True)
    monkeypatch.setattr(task_lists, "MOST", 100)
    with pytest.raises(CommschedError, match="more than 100 messages and operations"):
        tasks(made("ring+dense"))


@chakra
def test_other_simulators_that_cannot_be_run_are_one_sentence(tmp_path, capsys):
    silent, broken = (shutil.which(name) for name in ("true", "false"))
    for words, said in (
        ([], "give --astra-sim FILE or --loggopsim FILE"),
        (["--astra-sim", str(tmp_path / "none")], "none: cannot be run"),
        (["--astra-sim", silent], "true: printed no end of a rank"),
        (["--astra-sim", broken], "false: ended with status 1"),
        (["--loggopsim", str(tmp_path / "LogGOPSim")], "txt2bin: cannot be run"),
    ):
        assert main(["bench", "simulators", *words]) == 2
        told = capsys.readouterr().err
        assert said in told
        assert told.count("\n") == 1


def test_other_simulators_see_every_dense_all_reduce():
    found = [what for what, _ in plans()]
    names = {what.partition("+")[0] for what in found}
    assert {"ring", "direct", "doubling", "halving-doubling", "hierarchical", "tree"} <= names
    assert len(found) == 2 * len(names)
