"""The fabric of these ranks: hosts, MPI, transport, cores, processor."""

import json
import os
import platform
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from mpi4py import MPI

from commsched.machine.fabric import Fabric
from commsched.run.job import agree

Middle = Callable[..., Any]  # a mean or a median

CPUINFO = Path("/proc/cpuinfo")
KERNEL = Path("/proc/sys/kernel/random/boot_id")  # missing on other systems than Linux
MODEL = "model name"  # missing on ARM
LONGEST = 200  # characters of a name
# Variables by which libraries below MPI and Open MPI's layers are chosen; mpiexec's `--mca pml ob1`
# arrives as such a variable, too.
CHOICES = (
    "OMPI_MCA_pml",
    "OMPI_MCA_btl",
    "OMPI_MCA_mtl",
    "I_MPI_FABRICS",
    "FI_PROVIDER",
    "UCX_TLS",
)


class RankFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that one rank knows of its fabric."""

    host: str
    mpi: str
    transport: str
    cores: int
    processor: str


def fabric(comm: MPI.Intracomm) -> Fabric:
    """Describe the fabric of all ranks, with equal results; all ranks call it."""
    version = MPI.Get_library_version()
    own = RankFacts(
        host=_clean(socket.gethostname()),
        mpi=library(version),
        transport=transport(version, os.environ),
        cores=len(os.sched_getaffinity(0)),
        processor=processor(),
    )
    texts = agree.gather_text(msgspec.json.encode(own).decode(), comm)
    return common_fabric([msgspec.json.decode(text, type=RankFacts) for text in texts])


def common_fabric(everyone: Sequence[RankFacts]) -> Fabric:
    """Combine the facts of all ranks, in rank order."""
    counts = Counter(rank.host for rank in everyone)  # hosts by their first rank: node order
    return Fabric(
        hosts=tuple(counts),
        ranks=tuple(counts.values()),
        mpi=_all(rank.mpi for rank in everyone),
        transport=_all(rank.transport for rank in everyone),
        cores=min(rank.cores for rank in everyone),
        processor=_all(rank.processor for rank in everyone),
    )


def cores_of_host(comm: MPI.Intracomm) -> float:
    """Return the cores that the ranks of a host share, the least over the hosts.

    Hosts on one kernel, such as containers and network namespaces, share its cores: each host
    counts the cores for its own ranks. All ranks call it and get equal results.
    """
    return shared_cores(_usable_cores(comm))


def crowded(comm: MPI.Intracomm) -> bool:
    """Tell whether ranks outnumber the cores that they may use; all ranks call it."""
    ranks, usable = _on_kernels(_usable_cores(comm))
    return any(ranks[kernel] > len(usable[kernel]) for kernel in ranks)


def _usable_cores(comm: MPI.Intracomm) -> list[tuple[str, str, list[int]]]:
    """Return each rank's kernel, host and usable cores, on every rank."""
    host = socket.gethostname()
    kernel = KERNEL.read_text().strip() if KERNEL.exists() else host
    own = json.dumps([kernel, host, sorted(os.sched_getaffinity(0))])
    return [json.loads(text) for text in agree.gather_text(own, comm)]


def _on_kernels(
    everyone: Sequence[tuple[str, str, Iterable[int]]],
) -> tuple[Counter[str], dict[str, set[int]]]:
    """Return the ranks on each kernel, and the cores that they may use."""
    usable: dict[str, set[int]] = {}
    for kernel, _, cores in everyone:
        usable.setdefault(kernel, set()).update(cores)
    return Counter(kernel for kernel, _, _ in everyone), usable


def shared_cores(everyone: Sequence[tuple[str, str, Iterable[int]]]) -> float:
    """Return `cores_of_host` from each rank's kernel, host and usable cores."""
    on_kernel, usable = _on_kernels(everyone)
    on_host = Counter((kernel, host) for kernel, host, _ in everyone)
    return min(
        len(usable[kernel]) * ranks / on_kernel[kernel] for (kernel, _), ranks in on_host.items()
    )


def mean_or_median(threads: int, cores: float) -> Middle:
    """Return the statistic for the seconds of several steps on a host: the median or the mean.

    Threads that share cores wait for a core in whole slices of time, so that most short tasks do
    not wait at all and few wait long: the mean keeps all seconds. Otherwise the median leaves out
    disturbances of single steps.
    """
    return np.mean if threads > cores else np.median


def library(version: str) -> str:
    """Shorten an MPI's description to name and version, such as `Open MPI 5.0.11`."""
    line = _clean(version.splitlines()[0] if version else "")
    found = re.match(r"(.*?),?\s*(?:version\s*:?)?\s*v?(\d+(?:\.\d+)+\w*)", line, re.IGNORECASE)
    return _clean(" ".join(found.groups())) if found else line


def transport(version: str, variables: Mapping[str, str]) -> str:
    """Name the transport of messages, if library or environment tell it."""
    words = []
    device = re.search(r"^MPICH Device:\s*(.+)$", version, re.MULTILINE)
    if device:
        netmod = variables.get("MPIR_CVAR_CH4_NETMOD", "")
        layer, _, modules = device[1].partition(":")
        words.append(f"{layer}:{netmod or modules}" if modules else layer)
    words += [variables[name] for name in CHOICES if variables.get(name)]
    return _clean(" ".join(words) or "the default transport")


def processor() -> str:
    """Name the model of this host's processor."""
    named = ""
    with suppress(OSError), CPUINFO.open(errors="replace") as lines:  # a block for each core
        named = next((line.partition(":")[2] for line in lines if line.startswith(MODEL)), "")
    return _clean(named.strip() or platform.processor() or platform.machine())


def _all(names: Iterable[str]) -> str:
    """Return the name that all ranks give, or all different names."""
    return _clean(", ".join(dict.fromkeys(names)))


def _clean(text: str) -> str:
    """Return one line of printable characters, neither empty nor too long for a file."""
    words = "".join(c if c.isprintable() else " " for c in text).split()
    return " ".join(words)[:LONGEST].strip() or "unknown"
