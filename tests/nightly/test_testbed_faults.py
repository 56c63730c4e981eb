"""Hosts that die and ports that vanish under calibrate and run: a prompt end, and nothing left."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commsched.cli.main import main
from commsched.lab.testbed import bed as beds
from commsched.lab.testbed import network, system
from commsched.lab.testbed.bed import Testbed
from commsched.lab.testbed.hosts import home
from commsched.plan import file as plan_file
from commsched.timeline.parts import find
from tests.support.jobs import Ended, Single
from tests.support.small_plans import graph, machine, plan

REASON = system.lacking()
needs_rights = pytest.mark.skipif(REASON is not None, reason=str(REASON))
SECONDS = 60.0  # for a job to end; generous, because many tests may share two cores
COMMAND = (sys.executable, "-m", "commsched", "testbed")
HOSTS = 3
UNDER_WAY = 1e6  # B through a host's port: more than what MPI moves to start


@pytest.fixture
def bed() -> Iterator[Testbed]:
    """Hosts with one lane each, of a name that no other test has."""
    name = f"fault-{os.getpid()}-{time.monotonic_ns() % 10**9}"
    try:
        yield Testbed.up(HOSTS, 1, ["100mbit"], name=name)
    finally:
        beds.down(name)


def gone(name: str) -> bool:
    """Whether nothing of a testbed is there, neither namespaces nor files."""
    return name not in network.found() and not (home() / name).exists()


def emptied(name: str) -> bool:
    """Whether no process is left in a testbed, some time after the end."""
    end = time.monotonic() + SECONDS
    while (living := network.processes(network.found().get(name, []))) and time.monotonic() < end:
        time.sleep(0.02)
    return not living


def switch(bed: Testbed) -> str:
    return network.namespace(bed.name, network.SWITCH)


def host_dies(bed: Testbed) -> None:
    network.kill([network.namespace(bed.name, "h2")])


def port_vanishes(bed: Testbed) -> None:
    # It works from within the switch, and may be ended with all that is there.
    subprocess.run(["ip", "-n", switch(bed), "link", "del", "h2"], check=False)


def ended(bed: Testbed, words: list[str], fault: Callable[[Testbed], None]) -> Ended:
    """How `commsched` with these words ends when a fault comes while it is under way."""
    before = bed.counters()[1]
    job_words = ["-n", str(HOSTS), sys.executable, "-m", "commsched", *words]
    with Single(*COMMAND, "run", "--name", bed.name, "--", *job_words) as job:
        job.until(lambda: bed.counters()[1].since(before).sent > UNDER_WAY, SECONDS)
        fault(bed)
        done = job.wait(SECONDS)
        assert done.status == 2, done.output
        assert not job.left()
    assert emptied(bed.name)
    assert "Traceback" not in done.output
    return done


def assert_said(done: Ended, sentence: str) -> None:
    lines = done.output.replace("\0", "").splitlines()  # Open MPI leaves some
    said = [line for line in lines if line.startswith("commsched: ")]
    assert any(sentence in line for line in said), done.output


@needs_rights
def test_a_host_that_dies_ends_calibrate(bed, tmp_path):
    words = ["calibrate", "-o", str(tmp_path / "m.json"), "--seconds", "20"]
    assert_said(ended(bed, words, host_dies), "host h2 died during the job")
    assert list(tmp_path.iterdir()) == []
    assert network.read(bed.name) == bed.spec
    bed.down()
    assert gone(bed.name)


@needs_rights
def test_a_port_that_vanishes_ends_calibrate(bed, tmp_path):
    words = ["calibrate", "-o", str(tmp_path / "m.json"), "--seconds", "20"]
    assert_said(ended(bed, words, port_vanishes), "a shaped port has vanished")
    assert list(tmp_path.iterdir()) == []
    bed.down()
    assert gone(bed.name)


def endless(folder: Path) -> list[str]:
    """The words of a run that does not end on its own."""
    made = plan(graph([20_000] * 3), machine(HOSTS, 1), ["ring+dense"])
    plan_file.write(folder / "plan.json", made)
    output = str(folder / "m.json")
    return [
        "run",
        str(folder / "plan.json"),
        "-o",
        output,
        "--steps",
        "100000",
        "--force-size",
        "--timeout",
        "5",
    ]


@needs_rights
def test_a_host_that_dies_ends_the_run_and_its_timeline_can_be_shown(bed, tmp_path, capsys):
    assert_said(ended(bed, endless(tmp_path), host_dies), "host h2 died during the job")
    assert set(find(tmp_path / "m.json")) == set(range(HOSTS))
    assert main(["show", str(tmp_path / "m.json")]) == 0
    shown = capsys.readouterr().out
    assert "measured timeline of plan " in shown
    assert f" on {HOSTS} ranks" in shown
    assert "the run did not end; merged from what its ranks left" in shown


SLEEPERS = ["-n", str(HOSTS), sys.executable, "-c", "import time; time.sleep(600)"]


def entered(bed: Testbed, host: str) -> bool:
    """Whether the first process of a job is on a host, perhaps before the MPI's own."""
    for process in network.processes([network.namespace(bed.name, host)]):
        with contextlib.suppress(OSError):  # it has ended
            if b"/inside" in Path("/proc", str(process), "cmdline").read_bytes():
                return True
    return False


@needs_rights
@pytest.mark.parametrize("host", ["h0", "h1"])
def test_a_host_that_dies_while_the_job_starts_is_named(host, bed):
    with Single(*COMMAND, "run", "--name", bed.name, "--", *SLEEPERS) as job:
        job.until(lambda: entered(bed, host), SECONDS)
        network.kill([network.namespace(bed.name, host)])
        done = job.wait(SECONDS)
        assert not job.left()
    assert done.status == 2, done.output
    assert_said(done, f"testbed '{bed.name}': host {host} died during the job")
    assert emptied(bed.name)


@needs_rights
def test_a_rank_that_is_killed_is_not_taken_for_a_host(bed):
    with Single(*COMMAND, "run", "--name", bed.name, "--", *SLEEPERS) as job:
        job.until(lambda: set(job.processes().values()) >= set(range(HOSTS)), SECONDS)
        os.kill(job.rank(2), signal.SIGKILL)
        done = job.wait(SECONDS)
        assert not job.left()
    assert done.status not in (0, 2), done.output
    assert_said(done, f"the job ended with status {done.status}")
    assert " died during the job" not in done.output
    assert emptied(bed.name)


@needs_rights
def test_a_rate_of_0_is_refused_before_anything_is_made(capsys):
    before = network.found()
    for words in (
        ["up", "--rate", "0mbit"],
        ["run", "--rate", "h1=0kbit", "--", "-n", "1", "true"],
    ):
        assert main(["testbed", *words]) == 2
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 1
        assert said[0].endswith("out of range; allowed is 100kbit to 100gbit, such as 200mbit")
    assert network.found() == before
