"""`commsched.torch.attach`: the average of a model's gradients over the ranks, under backward."""

import os
from pathlib import Path
from typing import Any

from mpi4py import MPI

from commsched.errors import CommschedError
from commsched.program.read_plan import AnyPlan
from commsched.run.exchanger import Exchanger
from commsched.run.job import agree
from commsched.torch.arrays import device_of, share_stream
from commsched.torch.parameters import trained
from commsched.torch.states import Elements
from commsched.torch.sync import Sync


def attach(
    model: Any,
    plan: AnyPlan,
    comm: MPI.Intracomm | None = None,
    *,
    find_unused_parameters: bool = False,
    broadcast_buffers: bool = True,
    skip_overflow: bool = False,
    update_in_forward: Any = None,
    timeline: str | Path | None = None,
    record: str | Path | None = None,
    timeout: float = 600.0,
) -> Sync:
    """Average a model's gradients over all ranks, as a plan says; all ranks call it together.

    The rest of a training script stays as it is for one process. `backward()` hands
    gradients over as soon as they fill a bucket, and returns when every `.grad` holds the mean over
    all ranks, as with DistributedDataParallel. Gradients are read in place and copied once into the
    buckets; on the host `.grad` then is the memory of the bucket, on a GPU the mean is copied into
    `.grad`. Sparse gradients of embeddings are handed over as rows and come back sparse, see
    `Exchanger.ready`. Parameters and buffers start as those of rank 0.

    Parameters lie in host memory, or all on one GPU of each rank (the extra `cuda`). On a GPU CuPy
    adds gradients in PyTorch's current stream, which must not change: let the script work in a
    `torch.cuda.Stream`, because no transfer overlaps the work of CUDA's default stream.

    `comm`: all ranks, COMM_WORLD by default. With `find_unused_parameters` a parameter may get no
    gradient on some ranks; if it gets none on any rank, its `.grad` stays None. With
    `broadcast_buffers` each forward pass in training mode begins with the buffers of rank 0. Give
    `skip_overflow` with a GradScaler: NaN or infinity on any rank then makes all gradients infinite
    on all ranks, so that all skip the step; otherwise it ends the job. `timeline`, `record` and
    `timeout` [s] are those of Exchanger; the timeline (also set by the variable COMMSCHED_TIMELINE)
    has the layers' forward passes, "data" and "optimizer" in addition to an Exchanger's spans.

    Plans of `daso` average gradients and buffers only in each node, plans of `shadow` nowhere.
    Ranks then have different parameters, which the optimizer's step merges, before it returns, as
    the plan says. Until `backward()` of the next step the script may change parameters.

    Give the optimizer as `update_in_forward` to hide late exchanges under the next forward pass:
    `backward()` no longer waits, and `optimizer.step()` is done in parts, each before the module
    that reads the updated parameters. The bits are equal. Between `backward()` and the next forward
    pass `.grad` is None, so the script cannot clip or scale gradients, and parameters are as before
    the step; `state_dict()` of model, optimizer and this exchange, and `close()`, finish it first.
    """
    comm = started_by_mpi(comm)
    timeline = timeline or wanted_timeline()
    parameters = trained(model)
    device = agree.on_all_ranks(lambda: device_of(parameters), comm)
    elements = {name: Elements(parameter) for name, parameter in parameters.items()}
    if parameters:
        share_stream(parameters)
    exchanger = Exchanger(
        plan,
        comm,
        timeline=timeline,
        record=record,
        timeout=timeout,
        device=device,
        skip_overflow=skip_overflow,
        parameters=elements,
    )
    sync = Sync(model, exchanger, comm, find_unused_parameters, broadcast_buffers, skip_overflow)
    if update_in_forward is not None:
        try:
            agree.on_all_ranks(lambda: sync.update_in_forward(update_in_forward), comm)
        except CommschedError:
            sync.close()
            raise
    return sync


def wanted_timeline() -> str | None:
    """Return the file that the environment variable COMMSCHED_TIMELINE names."""
    return os.environ.get("COMMSCHED_TIMELINE") or None


def started_by_mpi(comm: MPI.Intracomm | None) -> MPI.Intracomm:
    """Return the ranks, COMM_WORLD by default; reject torchrun's processes, unknown to MPI."""
    comm = MPI.COMM_WORLD if comm is None else comm
    ranks = os.environ.get("WORLD_SIZE", "1")
    if "TORCHELASTIC_RUN_ID" in os.environ and comm.size == 1 and ranks != "1":
        raise CommschedError(
            f"torchrun started {ranks} processes, which MPI does not know of; start them with"
            f" 'mpiexec -n {ranks} python SCRIPT.py' and take rank and size from MPI.COMM_WORLD"
        )
    return comm
