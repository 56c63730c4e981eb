"""`commsched profile`: all ranks measure a net, and rank 0 returns the net."""

from collections.abc import Callable
from contextlib import nullcontext

from mpi4py import MPI

from commsched.net.graph import Net
from commsched.progress import working
from commsched.run.job import agree
from commsched.run.job.watchdog import end_together, watchdog
from commsched.run.session import check_timeout, errors_end_the_job
from commsched.run.wire.device import check_device
from commsched.run.wire.placement import choose_placement
from commsched.train.layers.layer import TrainableNet
from commsched.train.load import net_under_load, settings_of_rank
from commsched.train.optimizers import find_optimizer
from commsched.train.registry import DATA, NETS
from commsched.train.sample_order import check_batch


def profile_job(
    name: str,
    *,
    batch: int,  # of each rank
    optimizer: str,
    half: bool,
    device: str,  # "cpu" or "cuda"
    timeout: float,  # s without progress
    threads: int,  # of each rank's matrix products; 0: not known
    seconds: float,  # least s of counted steps
    check: Callable[[TrainableNet], None],  # raises an error for a net that is too large
) -> Net | None:
    """Measure a net on all ranks at once; return it on rank 0, None on the others."""

    def checked() -> TrainableNet:
        """Return the net to measure; raise an error if the options do not allow it."""
        check_timeout(timeout)
        check_device(device)
        find_optimizer(optimizer)
        net = NETS[name]
        check(net)
        check_batch(batch, len(DATA[net.data](0).train), 1)
        return net

    comm = MPI.COMM_WORLD
    end_together("profile", timeout)
    with errors_end_the_job(comm), watchdog(comm, "profile", timeout) as dog:
        agree.check_launcher()
        net = agree.on_all_ranks(checked, comm)
        place = choose_placement(device, comm)
        dog.stage(f"measuring {name}")
        own = settings_of_rank(batch, optimizer, half=half)
        with nullcontext() if comm.rank else working(f"measuring {name}"):
            found = net_under_load(net, own, comm, place, timeout, threads, seconds, dog.beat)
    return None if comm.rank else found
