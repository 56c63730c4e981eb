"""`commsched profile`: all ranks measure a net, rank 0 returns it."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

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


@dataclass(frozen=True, kw_only=True)
class ProfileRequest:
    """The settings of the command line."""

    net: str
    batch: int  # of each rank
    optimizer: str
    half: bool
    device: str  # "cpu" or "cuda"
    timeout: float  # s without progress
    threads: int  # of each rank's matrix products; 0: not known
    seconds: float  # of counted steps, at least
    check: Callable[[TrainableNet], None]  # refuses a net that is too large


def profile_job(wanted: ProfileRequest) -> Net | None:
    """Measure a net on all ranks at once; return it on rank 0, None on the others."""
    comm = MPI.COMM_WORLD
    end_together("profile", wanted.timeout)
    with errors_end_the_job(comm), watchdog(comm, "profile", wanted.timeout) as dog:
        agree.check_launcher()
        net = agree.on_all_ranks(lambda: _checked(wanted), comm)
        place = choose_placement(wanted.device, comm)
        dog.stage(f"measuring {wanted.net}")
        own = settings_of_rank(wanted.batch, wanted.optimizer, half=wanted.half)
        with nullcontext() if comm.rank else working(f"measuring {wanted.net}"):
            found = net_under_load(
                net, own, comm, place, wanted.timeout, wanted.threads, wanted.seconds, dog.beat
            )
    return None if comm.rank else found


def _checked(wanted: ProfileRequest) -> TrainableNet:
    """Return the net to measure, if it can be measured like this."""
    check_timeout(wanted.timeout)
    check_device(wanted.device)
    find_optimizer(wanted.optimizer)
    net = NETS[wanted.net]
    wanted.check(net)
    check_batch(wanted.batch, len(DATA[net.data](0).train), 1)
    return net
