"""The command lines and variables with which each MPI starts ranks on a testbed's hosts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from commsched.errors import CommschedError
from commsched.lab.testbed.hosts import Files
from commsched.lab.testbed.network import INTERFACE


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """An mpiexec, the MPI it belongs to, and the variables that it needs on this machine."""

    family: str  # "MPICH" or "Open MPI"
    command: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


Started = tuple[list[str], dict[str, str]]


def _mpich(files: Files) -> Started:
    """Configure Hydra: sockets through libfabric between hosts, shared memory inside a host."""
    words = ["-f", str(files.slots("MPICH")), "-iface", INTERFACE]
    words += ["-launcher", "ssh", "-launcher-exec", str(files.enter)]
    return words, {
        "MPIR_CVAR_CH4_NETMOD": "ofi",
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": INTERFACE,
    }


def _open_mpi(files: Files) -> Started:
    """Configure PRRTE (Open MPI 5): its sockets between hosts, shared memory inside a host."""
    return ["--hostfile", str(files.slots("Open MPI"))], {
        "PRTE_MCA_plm_ssh_agent": str(files.enter),
        "PRTE_MCA_prte_if_include": INTERFACE,
        # All hosts have the same cores: with binding, all first ranks would share one core.
        "PRTE_MCA_rmaps_default_mapping_policy": "slot:oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "tcp,sm,self",
        "OMPI_MCA_btl_tcp_if_include": INTERFACE,
    }


FAMILIES: Mapping[str, Callable[[Files], Started]] = {"MPICH": _mpich, "Open MPI": _open_mpi}


def start(launcher: Launcher, files: Files, words: Sequence[str]) -> Started:
    """Return the command line for mpiexec's `words`, and its variables."""
    if launcher.family not in FAMILIES:
        known = " and ".join(FAMILIES)
        raise CommschedError(f"a testbed starts ranks of {known}, not of {launcher.family}")
    own, variables = FAMILIES[launcher.family](files)
    return [*launcher.command, *own, *words], {**launcher.variables, **variables}
