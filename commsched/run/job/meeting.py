"""The meeting of all ranks before their command begins: MPI, and one agreement on their start."""

from collections.abc import Mapping

from commsched.run.job import launcher


def meet(command: str, options: Mapping[str, str], timeout: float) -> None:
    """Load MPI, before NumPy; raise an error if ranks were started with different options."""
    launcher.load(timeout)
    from mpi4py import MPI

    from commsched.run.job.agree import check_start
    from commsched.run.job.watchdog import watchdog

    with watchdog(MPI.COMM_WORLD, command, timeout):
        check_start(command, options, MPI.COMM_WORLD)
