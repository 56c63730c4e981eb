"""Shaped hosts: rates, host names, the proof by counters, and that nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.lab.testbed import bed as beds
from commsched.lab.testbed import network, system
from commsched.lab.testbed.bed import Testbed
from commsched.lab.testbed.hosts import home
from commsched.lab.testbed.mpi import Launcher
from commsched.lab.testbed.spec import Spec
from commsched.lab.validate.fabrics import launcher
from commsched.plan import file as plan_file
from commsched.timeline import file as timeline_file
from commsched.timeline.parts import find
from tests.support.jobs import Single
from tests.support.small_plans import graph, machine, plan

REASON = system.lacking()
needs_rights = pytest.mark.skipif(REASON is not None, reason=str(REASON))
SECONDS = 60.0  # for a job to end; generous, because many tests may share two cores
COMMAND = (sys.executable, "-m", "commsched", "testbed")
MBIT = 1e6 / 8  # B/s

# Says on which host each rank is, then waits to be killed.
SLEEPER = """
import sys, time
from mpi4py import MPI
comm = MPI.COMM_WORLD
comm.Barrier()
print("up", flush=True)
time.sleep(600)
"""

# Bytes of argv from rank to rank, as many times as there are pairs; prints the receiver's seconds.
TRANSFER = """
import sys, time
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
size = int(sys.argv[1])
for text in sys.argv[2:]:
    pairs = [tuple(map(int, pair.split("-"))) for pair in text.split(",")]
    comm.Barrier()
    start = time.perf_counter()
    requests = [comm.Irecv(np.empty(size, np.uint8), s) for s, d in pairs if d == comm.rank]
    requests += [comm.Isend(np.ones(size, np.uint8), d) for s, d in pairs if s == comm.rank]
    MPI.Request.Waitall(requests)
    spent = np.array([time.perf_counter() - start]), np.empty(1)
    comm.Allreduce(*spent, MPI.MAX)
    if comm.rank == 0:
        print(spent[1][0], flush=True)
"""


@pytest.fixture(scope="module")
def mpi() -> Launcher:
    return launcher()


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    """Two lanes on four hosts; the last host is slow."""
    with Testbed.up(4, 2, ["200mbit", "h3=100mbit"]) as made:
        yield made


@pytest.fixture
def name() -> Iterator[str]:
    """A name that no other test has; whatever is there is taken down."""
    yield (made := f"test-{os.getpid()}-{time.monotonic_ns() % 10**9}")
    beds.down(made)


def living(name: str) -> set[int]:
    return network.processes(network.found().get(name, []))


def emptied(name: str) -> bool:
    """Whether no process is left in a testbed, some time after the end."""
    end = time.monotonic() + SECONDS
    while living(name) and time.monotonic() < end:
        time.sleep(0.02)
    return not living(name)


def gone(name: str) -> bool:
    """Whether nothing of a testbed is there, neither namespaces nor files."""
    return name not in network.found() and not (home() / name).exists()


def links() -> str:
    """The machine's own interfaces."""
    return subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout


@needs_rights
def test_up_twice_and_down_twice_leave_the_machine_as_it_was(name, capsys):
    before = links()
    for _ in range(2):
        assert main(["testbed", "up", "--hosts", "3", "--lanes", "1", "--name", name]) == 0
        inodes = [(network.FOLDER / each).stat().st_ino for each in network.found()[name]]
    Testbed.up(3, 1, name=name)
    assert [(network.FOLDER / each).stat().st_ino for each in network.found()[name]] == inodes
    assert links() == before
    assert main(["testbed", "status", "--json"]) == 0
    shown = capsys.readouterr().out
    (found,) = [row for row in json.loads(shown[shown.index("[") :]) if row["name"] == name]
    assert (len(found["hosts"]), found["lanes"], found["in_use"]) == (3, 1, False)
    assert found["hosts"][0]["rate"] == 1e9 / 8
    for said in (f"taken down: {name}\n", "nothing was up\n"):
        assert main(["testbed", "down", "--name", name]) == 0
        assert capsys.readouterr().out == said
    assert gone(name)


@needs_rights
def test_up_replaces_another_shape_and_repairs_what_is_not_whole(name):
    assert Testbed.up(2, 1, ["10mbit"], name=name).spec == network.read(name)
    with pytest.raises(CommschedError, match=f"^testbed '{name}' is up as .*; add --replace"):
        Testbed.up(3, 2, ["20mbit", "h1=5mbit"], name=name)
    bed = Testbed.up(3, 2, ["20mbit", "h1=5mbit"], name=name, replace=True)
    assert network.read(name) == bed.spec == Spec(2, (20 * MBIT, 5 * MBIT, 20 * MBIT))
    subprocess.run(["ip", "netns", "del", network.namespace(name, "h1")], check=True)
    with pytest.raises(CommschedError, match="is not whole"):
        Testbed.find(name)
    again = Testbed.up(3, 2, ["20mbit", "h1=5mbit"], name=name)
    assert network.read(name) == again.spec
    assert len(again.counters()) == 3


@needs_rights
def test_each_rank_has_the_name_and_the_shared_memory_of_its_host(bed, mpi, tmp_path):
    code = (
        "import os, pathlib, socket, sys, time\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\n"
        "pathlib.Path('/dev/shm', f'mine{comm.rank}').touch()\ncomm.Barrier()\n"
        "seen = sorted(p.name for p in pathlib.Path('/dev/shm').glob('mine*'))\n"
        "text = f'{socket.gethostname()} {\" \".join(seen)}'\n"
        "pathlib.Path(sys.argv[1], str(comm.rank)).write_text(text)\n"
    )
    done = bed.run(
        [sys.executable, "-c", code, str(tmp_path)], ranks=8, launcher=mpi, timeout=SECONDS
    )
    assert done.status == 0, done.stderr
    told = [(tmp_path / str(rank)).read_text() for rank in range(8)]
    assert told == [f"h{r // 2} mine{r // 2 * 2} mine{r // 2 * 2 + 1}" for r in range(8)]
    assert not list(Path("/dev/shm").glob("mine*"))


@needs_rights
def test_a_transfer_is_not_faster_than_the_ports_and_is_counted(bed, mpi):
    size = 4_000_000
    cases = ["0-2", "2-0", "0-2,4-2,1-3", "0-6", "6-0", "0-1"]
    done = bed.run(
        [sys.executable, "-c", TRANSFER, str(size), *cases],
        ranks=8,
        launcher=mpi,
        timeout=SECONDS,
    )
    assert done.status == 0, done.stderr
    seconds = np.array([float(line) for line in done.stdout.split()])
    # A bucket of the sender and one of the receiver may be full at the start.
    fast, slow = 200 * MBIT, 100 * MBIT
    free = 2 * network.BURST * fast
    least = [(n * size - free) / rate for n, rate in [(1, fast), (1, fast), (3, fast)]]
    least += [(size - free) / slow] * 2
    assert (seconds[:5] > least).all()
    moved = [(4 * size, 2 * size), (size, 4 * size), (size, 0), (size, size)]  # not 0-1
    for traffic, (sent, received) in zip(done.counters, moved, strict=True):
        assert sent * 0.999 < traffic.data_sent < sent + 5e5
        assert received * 0.999 < traffic.data_received < received + 5e5
        assert traffic.dropped == 0


@needs_rights
def test_a_plan_runs_through_the_ports_and_its_timeline_proves_it(bed, tmp_path):
    methods = ["ring+dense", "hierarchical+fp16", "all-gather+coo", "native+dense", "direct+dense"]
    made = plan(graph([20_000] * 5), machine(4, 2), methods)
    plan_file.write(tmp_path / "plan.json", made)
    output, report = tmp_path / "measured.json", tmp_path / "report.json"
    words = ["-n", "8", sys.executable, "-m", "commsched", "run", str(tmp_path / "plan.json")]
    words += ["-o", str(output), "--steps", "4", "--verify"]
    # a testbed that was up before: given by name
    with Single(*COMMAND, "run", "--name", bed.name, "--report", str(report), "--", *words) as job:
        ended = job.wait(SECONDS)
        assert ended.status == 0, ended.output
        assert "all expected bytes crossed the shaped ports" in ended.output
        assert not job.left()
    header = timeline_file.read(output).header
    assert header.hosts == ("h0", "h0", "h1", "h1", "h2", "h2", "h3", "h3")
    assert header.placement == ()
    for row in json.loads(report.read_bytes())["hosts"]:
        assert row["expected_sent"] > 5e5
        # More than expected: --verify sums every bucket once more, and the MPI's own all-reduce
        # is expected at its least.
        assert row["data_sent"] > row["expected_sent"] * 0.98


@needs_rights
def test_a_job_that_goes_around_the_ports_fails_loudly(bed, mpi, tmp_path):
    made = plan(graph([50_000]), machine(4, 2), ["ring+dense"])
    plan_file.write(tmp_path / "plan.json", made)
    # All ranks on h0, whatever the host file says; Hydra takes no second list of hosts.
    around = ["--host", "h0:8", "-n", "8"]
    if mpi.family == "MPICH":
        unset = [word for name in ("PMI_FD", "PMI_RANK", "PMI_SIZE") for word in ("-u", name)]
        around = ["-n", "1", "env", *unset, *mpi.command, "-n", "8"]
    words = [*around, sys.executable, "-m", "commsched", "run"]
    words += [str(tmp_path / "plan.json"), "-o", str(tmp_path / "measured.json"), "--steps", "4"]
    with Single(*COMMAND, "run", "--name", bed.name, "--", *words) as job:
        ended = job.wait(SECONDS)
    assert ended.status == 1, ended.output
    assert "commsched: host h1 sent" in ended.output
    assert "the rest went around the port" in ended.output


@needs_rights
@pytest.mark.parametrize(("size", "status"), [("1kB", 0), ("50MB", 1)])
def test_a_stated_expectation_is_checked(size, status, bed):
    words = ["-n", "8", sys.executable, "-c", TRANSFER, "1000", "0-2,2-4,4-6,6-0"]
    with Single(*COMMAND, "run", "--name", bed.name, "--expect", size, "--", *words) as job:
        ended = job.wait(SECONDS)
    assert ended.status == status, ended.output


@needs_rights
def test_the_status_of_the_job_is_handed_on(bed, capfd):
    words = ["-n", "2", sys.executable, "-c", "raise SystemExit(7)"]
    assert main(["testbed", "run", "--name", bed.name, "--", *words]) == 7
    assert "the job ended with status 7" in capfd.readouterr().err


@needs_rights
def test_a_job_that_takes_too_long_is_ended_with_all_its_processes(bed, mpi):
    with pytest.raises(CommschedError, match=r"took more than 3 s and was ended"):
        bed.run([sys.executable, "-c", SLEEPER], ranks=8, launcher=mpi, timeout=3.0)
    assert not living(bed.name)
    assert not beds.in_use(bed.name)


def sleeping(name: str, *more: str) -> Single:
    """Eight ranks that sleep on a testbed; wait for `up` in the output."""
    return Single(
        *COMMAND, "run", "--name", name, *more, "--", "-n", "8", sys.executable, "-c", SLEEPER
    )


def ranks_asleep(job: Single) -> bool:
    return job.output.count("up") == 8


@needs_rights
@pytest.mark.parametrize("victim", ["rank", "mpiexec", "host", "commsched"])
def test_whatever_is_killed_the_job_ends_and_no_process_is_left(victim, bed):
    with sleeping(bed.name) as job:
        job.until(lambda: ranks_asleep(job), SECONDS)
        processes = job.processes()
        if victim == "host":
            network.kill([network.namespace(bed.name, "h2")])
        else:
            os.kill(_victim(victim, job, processes), signal.SIGKILL)
        assert job.wait(SECONDS).status != 0
        assert not job.left()
    assert emptied(bed.name)
    assert network.read(bed.name) == bed.spec


def _victim(victim: str, job: Single, processes: dict[int, int | None]) -> int:
    if victim == "rank":
        return job.rank(5)
    if victim == "commsched":
        return job.process.pid
    for process in processes:
        words = Path("/proc", str(process), "cmdline").read_bytes().split(b"\0")
        if Path(words[0].decode()).name.startswith(("mpiexec", "prterun", "mpirun")):
            return process
    raise AssertionError("no mpiexec")


@needs_rights
def test_an_interrupt_takes_the_job_and_its_own_hosts_away():
    with Single(
        *COMMAND, "run", "--hosts", "4", "--", "-n", "8", sys.executable, "-c", SLEEPER
    ) as job:
        job.until(lambda: ranks_asleep(job), SECONDS)
        name = f"run-{job.process.pid}-0"
        assert name in network.found()
        os.kill(job.process.pid, signal.SIGINT)
        assert job.wait(SECONDS).status == 130
        assert not job.left()
    assert gone(name)


@needs_rights
def test_the_hosts_of_a_killed_process_are_swept_up():
    with Single(
        *COMMAND, "run", "--hosts", "2", "--", "-n", "2", sys.executable, "-c", SLEEPER
    ) as job:
        job.until(lambda: "up" in job.output, SECONDS)
        name = f"run-{job.process.pid}-0"
        os.kill(job.process.pid, signal.SIGKILL)
        job.wait(SECONDS)
        assert not job.left()
    assert name in network.found()
    assert main(["testbed", "down", "--name", "nothing-of-that-name"]) == 0
    assert gone(name)


@needs_rights
def test_leftovers_without_files_or_with_strangers_in_them_are_taken_down(name):
    where = network.namespace(name, "h7")
    subprocess.run(["ip", "netns", "add", where], check=True)
    with subprocess.Popen(["ip", "netns", "exec", where, "sleep", "600"]) as stranger:
        end = time.monotonic() + SECONDS
        while stranger.pid not in living(name):
            assert time.monotonic() < end
            time.sleep(0.02)
        assert beds.down(name)
        assert stranger.wait(SECONDS) == -signal.SIGKILL
    assert gone(name)


def written(output: Path) -> int:
    """How many ranks have written spans."""
    return sum(part.read_bytes().count(b"\n") > 20 for part in find(output).values())


@needs_rights
def test_a_port_that_vanishes_ends_the_run_and_its_timeline_is_readable(name, tmp_path):
    Testbed.up(4, 2, ["100mbit"], name=name)
    output = tmp_path / "measured.json"
    plan_file.write(
        tmp_path / "plan.json", plan(graph([20_000] * 3), machine(4, 2), ["ring+dense"])
    )
    words = ["-n", "8", sys.executable, "-m", "commsched", "run", str(tmp_path / "plan.json")]
    words += ["-o", str(output), "--steps", "100000", "--force-size"]
    with Single(*COMMAND, "run", "--name", name, "--", *words) as job:
        job.until(lambda: written(output) == 8, SECONDS)
        switch = network.namespace(name, "switch")
        # It works from within the switch, and may be ended with all that is there.
        subprocess.run(["ip", "-n", switch, "link", "del", "h2"], check=False)
        ended = job.wait(SECONDS)
        assert ended.status == 2, ended.output
        assert "a shaped port has vanished" in ended.output
        assert "Traceback" not in ended.output
        assert not job.left()
    left = timeline_file.read(output)
    assert set(left.rank) == set(range(8))
    assert "the run did not end" in left.warnings[0]


@needs_rights
def test_down_ends_a_job_that_runs_and_a_second_job_is_refused(name, mpi):
    bed = Testbed.up(4, 2, name=name)
    with sleeping(name) as job:
        job.until(lambda: ranks_asleep(job), SECONDS)
        with pytest.raises(CommschedError, match="is in use by another job: process "):
            bed.run(["true"], ranks=1, launcher=mpi)
        with pytest.raises(CommschedError, match="is in use by another job: process "):
            Testbed.up(2, 2, name=name, replace=True)
        assert Testbed.up(4, 2, name=name).spec == bed.spec
        bed.down()
        assert job.wait(SECONDS).status != 0  # 2 where the ports went first, else 137
        assert not job.left()
    assert gone(name)
