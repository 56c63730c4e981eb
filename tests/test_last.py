"""The last operations of each rank outlive any end, and show where the ranks diverged."""

import json
import os
import signal
import subprocess
import sys
import tempfile

import pytest
from mpi4py import MPI

from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.plan import file as plan_file
from commsched.run.engine.last_operations import LastOperations
from commsched.run.engine.unnamed_timeline import FOLDER, JOBS, make_room
from commsched.run.job.lifeline import SCRIPT
from commsched.run.job.witness import MET, NOTE
from commsched.timeline import last_report
from commsched.timeline.model import Span
from commsched.timeline.parts import PartRow, base, find, part_path
from tests.support.jobs import RUN, Job
from tests.support.small_plans import graph, machine, plan

LIMIT = 60  # s
BOTH = [True, True]
MADE = plan(graph([50] * 2), machine(1, 1), ["ring+dense"])
EXCHANGER = """
import os, signal, sys
from commsched.run.exchanger import Exchanger
from tests.support.ranks import WORLD
from tests.support.tiny_exchange import make_plan, one_step
with Exchanger(make_plan(), WORLD) as exchanger:
    for step in range(int(sys.argv[1])):
        one_step(exchanger, step, WORLD.rank)
    if len(sys.argv) > 2 and WORLD.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def operation(step, name="b0/exchange"):
    return Span(0, "inside", name, step, step + 0.25, step + 0.5, 0.0, 8)


def of_ranks(*ranks):
    """Operations of ranks that ended these names in step 7, after all of them in step 6."""
    names = ("forward/l0", "b0/exchange", "b1/exchange")
    rows = [
        [PartRow("x", name, 6, i, i + 1, 0, 0) for i, name in enumerate(names)]
        + [PartRow("x", name, 7, i + 3, i + 4, 0, 0) for i, name in enumerate(ended)]
        for ended in ranks
    ]
    header = last_report.PartHeader(plan_hash="h" * 64, ranks=len(rows), rank=0, names=names)
    of = {rank: last_report.RankOperations(own, []) for rank, own in enumerate(rows)}
    return last_report.Operations(header=header, of=of, torn=0)


def test_the_newest_operations_stay_and_an_operation_that_began_is_under_way(tmp_path):
    kept = LastOperations(MADE, MPI.COMM_SELF, tmp_path / "m.json")
    for step in range(last_report.KEPT + 7):
        kept.begin(operation(step))
        kept.take(operation(step))
    kept.begin(operation(last_report.KEPT + 6, "b1/exchange"))
    kept.take(operation(last_report.KEPT + 7, "x" * 500))
    (own,) = last_report.read(tmp_path / "m.json.last").of.values()  # while the job runs
    assert [row.step for row in own.ended] == list(range(8, last_report.KEPT + 8))
    assert own.ended[-1].name == "x" * 200
    assert [(row.name, row.step) for row in own.under_way] == [
        ("b1/exchange", last_report.KEPT + 6)
    ]
    kept.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_row_that_was_being_written_is_left_out(tmp_path):
    kept = LastOperations(MADE, MPI.COMM_SELF, tmp_path / "m.json")
    for step in range(3):
        kept.take(operation(step))
    path = part_path(tmp_path / "m.json", 0, last_report.LAST)
    content = path.read_bytes()
    newer, older = (
        last_report.ROW.pack(n, 1, 1.25, *[0.0] * 5, b"x", b"y", n)[:16] for n in (9, 2)
    )
    assert content.count(older) == 1
    path.write_bytes(content.replace(older, newer))
    found = last_report.read(path)
    assert ([row.step for row in found.of[0].ended], found.torn) == ([0, 2], 1)
    assert "1 row torn at the end, left out" in last_report.words(found)


def test_the_first_operation_in_the_programs_order_that_some_lack_is_where_ranks_diverged():
    before, after = ["forward/l0"], ["forward/l0", "b0/exchange", "b1/exchange"]
    assert last_report.divergence(of_ranks(after, after)) is None
    found = of_ranks(after, before, after[:2])
    assert last_report.divergence(found) == (7, "b0/exchange", "ended", [0, 2], [1])
    assert "at b0/exchange of step 7: ended on ranks 0, 2, not on rank 1\n" in last_report.words(
        found
    )
    assert "7  b0/exchange     1 s       -     1 s" in last_report.words(found)
    found.of[1].ended[:] = [row for row in found.of[1].ended if row.name == "forward/l0"]
    assert last_report.divergence(found) == (
        7,
        "b1/exchange",
        "ended",
        [0],
        [2],
    )  # rank 1 has another role


def test_ranks_that_wait_in_an_exchange_are_ahead_of_one_that_has_not_begun_it():
    found = of_ranks(["forward/l0"], ["forward/l0"], ["forward/l0"])
    for rank in (0, 2):
        found.of[rank].under_way.append(PartRow("inside", "b0/exchange", 7, 9.0, 9.0, 0, 0))
    assert last_report.divergence(found) == (7, "b0/exchange", "begun", [0, 2], [1])
    assert "begun on ranks 0, 2, not on rank 1\n" in last_report.words(found)
    found.of[1].under_way.extend(found.of[0].under_way)
    assert "all have ended and begun the same operations" in last_report.words(found)


def test_files_of_different_jobs_or_none_are_refused(tmp_path):
    with pytest.raises(CommschedError, match=r"no last operations \(m.json.rank0.last, \.\.\.\)"):
        last_report.read(tmp_path / "m.json.last")
    LastOperations(MADE, MPI.COMM_SELF, tmp_path / "m.json")
    path = part_path(tmp_path / "m.json", 0, last_report.LAST)
    other = path.read_bytes().replace(b'"rank":0', b'"rank":1').replace(b'"ranks":1', b'"ranks":2')
    part_path(tmp_path / "m.json", 1, last_report.LAST).write_bytes(other)
    with pytest.raises(CommschedError, match="of different jobs"):
        last_report.read(tmp_path / "m.json.last")


def test_a_folder_that_cannot_be_written_ends_no_job(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(FOLDER, str(tmp_path / "file"))
    kept = LastOperations(MADE, MPI.COMM_SELF, None)
    kept.take(operation(0))
    kept.remove()
    assert "rank 0: its last operations are not kept: " in capsys.readouterr().err


def test_of_jobs_without_a_timeline_only_the_newest_that_failed_stay(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    names = [f"20250101-0000{second:02}-1" for second in range(JOBS + 2)]
    for name in names:
        (tmp_path / f"{name}.rank0.last").write_text("")
    (tmp_path / "other").write_text("")
    LastOperations(MADE, MPI.COMM_SELF, None).remove()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [*(f"{name}.rank0.last" for name in names[2:]), "other"]


def test_jobs_of_one_process_have_names_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    jobs = [LastOperations(MADE, MPI.COMM_SELF, None) for _ in range(3)]  # within a second
    assert len({job.path for job in jobs}) == 3
    for job in jobs:
        job.remove()
    assert list(tmp_path.iterdir()) == []


def test_the_files_of_a_job_that_runs_stay_however_many_begin_later(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    runs, ended = (LastOperations(MADE, MPI.COMM_SELF, None) for _ in range(2))
    spans = part_path(runs.base, 0)
    spans.write_text("")
    ended._map.close()  # as where its process has ended
    for number in range(JOBS):
        (tmp_path / f"29990101-000000-{number}.rank0.last").write_text("")
    make_room(runs.base)
    assert (runs.path.exists(), spans.exists(), ended.path.exists()) == (True, True, False)
    runs.remove()
    make_room(runs.base)
    assert not spans.exists()


def test_the_own_folder_goes_with_the_last_job_in_it(tmp_path, monkeypatch):
    monkeypatch.delenv(FOLDER)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept = LastOperations(MADE, MPI.COMM_SELF, None)
    assert [path.parent.parent for path in tmp_path.glob("*/*.last")] == [tmp_path]
    kept.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.by_day(0)
def test_an_exchanger_killed_without_a_timeline_leaves_them_in_the_folder(tmp_path, capsys):
    variables, words = {FOLDER: str(tmp_path)}, [sys.executable, "-c", EXCHANGER]
    with Job(2, [*words, "3"], variables=variables) as job:
        assert job.wait(LIMIT).status == 0
    assert list(tmp_path.iterdir()) == []
    with Job(2, [*words, "3", "killed"], variables=variables) as job:
        assert job.wait(LIMIT).status != 0
    (name,) = {str(last_report.base(path)) for path in tmp_path.iterdir()}
    assert set(find(name, last_report.LAST)) == {0, 1}
    main(["show", f"{name}.last", "--json"])
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)  # NaN is no JSON
    for rank in ("0", "1"):
        ended = {(row["step"], row["name"]) for row in told["operations"][rank]["ended"]}
        assert {(0, "b0/exchange"), (1, "b0/exchange")} <= ended, ended


@pytest.mark.by_day(0)
def test_a_run_to_a_pipe_leaves_no_parts_beside_it(tmp_path):
    folder, made, pipe = tmp_path / "last", tmp_path / "plan.json", tmp_path / "pipe"
    plan_file.write(made, plan(graph([50] * 2), machine(1, 2), ["ring+dense"]))
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    words = [*RUN, str(made), "-o", str(pipe), "--steps", "1000000", "--force-size"]
    with Job(2, words, variables={FOLDER: str(folder)}) as job:
        job.until(
            lambda: [p.read_bytes().count(b"\n") > 20 for p in folder.glob("*.jsonl")] == BOTH
        )
        os.kill(job.rank(1), signal.SIGKILL)
        job.wait(LIMIT)
    os.close(reader)
    assert {path.name for path in tmp_path.iterdir()} == {"last", "plan.json", "pipe"}
    (name,) = {str(base(path)) for path in folder.glob("*.jsonl")}
    assert set(find(name)) == set(find(name, last_report.LAST)) == {0, 1}


def test_the_witness_of_a_killed_rank_says_where_the_last_operations_are():
    with subprocess.Popen(["sleep", "1000"]) as rank:  # this test is its launcher
        words = [sys.executable, "-I", "-S", str(SCRIPT), "1", "h", str(rank.pid), "1", "60"]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as witness:
            rank.kill()
            said = witness.communicate(MET + NOTE + b"see there\n", LIMIT)[1].decode()
        rank.wait()
    want = f"commsched: rank 1 on host h (process {rank.pid}) was killed by SIGKILL; see there\n"
    assert said == want


@pytest.mark.by_day(0)
def test_a_training_that_loses_power_leaves_them_in_the_folder(tmp_path):
    """All processes of the job at once, as where a node's power goes."""
    words = [*RUN[:-1], "train", "--net", "mlp:8:2", "--batch", "8", "--method", "ring+dense"]
    words += ["--steps", "100000"]

    def both_train() -> bool:  # each rank has profiled the net before, as rank 0 of its own
        bases = [path.name.partition(".")[0] for path in tmp_path.glob("*.rank1.last")]
        some = [path for base in bases for path in tmp_path.glob(f"{base}.*.last")]
        return [any(path.read_bytes().partition(b"\n")[2]) for path in some] == BOTH

    with Job(2, words, variables={FOLDER: str(tmp_path)}) as job:
        job.until(both_train)
        for pid in job.processes():
            os.kill(pid, signal.SIGKILL)
        job.wait(LIMIT)
    (name,) = {str(last_report.base(path)) for path in tmp_path.iterdir()}
    found = last_report.read(name)
    assert set(found.of) == {0, 1}
    assert all(own.ended for own in found.of.values())
    assert "last operations of 2 ranks" in last_report.words(found)
