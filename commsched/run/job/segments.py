"""The shared memory segments of a host's ranks: a job leaves none behind, however it ends."""

import os
from contextlib import suppress
from pathlib import Path

FOLDER = Path("/dev/shm")
MPICH = f"{FOLDER}/mpich_shm_"
MAPPED = Path("/proc/self/maps")


def unname() -> None:
    """Remove the names of MPICH's segments that this rank maps; all ranks must have mapped them.

    The memory lasts until the last rank ends. MPICH itself removes the names at MPI_Finalize, which
    a job that is killed or aborted does not reach.
    """
    with suppress(OSError):  # no Linux
        for line in MAPPED.read_text(errors="replace").splitlines():
            path = line.partition("/")[1] + line.partition("/")[2]
            if path.startswith(MPICH) and not path.endswith(" (deleted)"):
                with suppress(OSError):  # another rank was first
                    os.unlink(path)
