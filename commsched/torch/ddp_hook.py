"""`commsched.torch.hook`: a plan as the communication hook of DistributedDataParallel."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch
from mpi4py import MPI
from torch.nn.parallel import DistributedDataParallel

from commsched.errors import CommschedError
from commsched.program.read_plan import AnyPlan
from commsched.run.exchanger import Exchanger
from commsched.torch.arrays import share_stream, tensor_of
from commsched.torch.attach import started_by_mpi
from commsched.torch.parameters import check_fits, dense_array, trained, unplanned
from commsched.torch.script_end import ScriptEnd


def hook(
    plan: AnyPlan,
    comm: MPI.Intracomm | None = None,
    *,
    timeout: float = 600.0,
    device: str = "cpu",
    skip_overflow: bool = False,
) -> tuple["DdpBuckets", Callable[["DdpBuckets", Any], Any]]:
    """Return state and hook for `ddp.register_comm_hook(*commsched.torch.hook(plan, comm))`.

    All ranks call it together; `comm` has the ranks of DDP's process group in the same order,
    COMM_WORLD by default. Gradients are handed over with DDP's buckets, so a small `bucket_cap_mb`
    overlaps best. The last bucket waits for all means. A plan made with `--sum` is rejected. For a
    model on PyTorch's current GPU give `device="cuda"`; with a GradScaler give `skip_overflow`, see
    `attach`. A parameter that the plan lacks must have no gradient.
    """
    if device == "cuda":
        share_stream({"": torch.empty(0, device=device)})
    comm = started_by_mpi(comm)
    exchanger = Exchanger(plan, comm, timeout=timeout, device=device, skip_overflow=skip_overflow)
    buckets = DdpBuckets(exchanger, comm.Dup() if skip_overflow else None)
    return buckets, lambda state, bucket: state.take(bucket)


class DdpBuckets:
    """DDP's buckets of a step, and the names of their parameters."""

    def __init__(self, exchanger: Exchanger, skipping: MPI.Intracomm | None = None) -> None:
        self._exchanger = exchanger
        self._skipping = skipping  # ranks that all skip a step if one of them overflows
        self._names: dict[int, str] = {}  # id of a parameter -> its name
        self._pending: list[tuple[Any, Any]] = []  # a bucket and its future
        exchanger.__enter__()
        self._end = ScriptEnd(exchanger, self.close)

    def take(self, bucket: Any) -> Any:
        """Hand over a bucket's gradients; its future is set after the last bucket."""
        if not self._names:
            self._find_names(bucket.parameters()[0])
        for name, gradient in self._gradients(bucket):
            self._exchanger.ready(name, dense_array(name, gradient))
        where = bucket.buffer().device
        future = torch.futures.Future(devices=[where] if where.type == "cuda" else [])
        self._pending.append((bucket, future))
        if bucket.is_last():
            for full, _ in self._pending:
                for name, gradient in self._gradients(full):
                    mean = self._exchanger.wait(name)
                    gradient.copy_(tensor_of(mean).view(gradient.shape))
            overflow = self._overflow()
            for full, done in self._pending:
                if overflow:
                    full.buffer().fill_(float("inf"))
                done.set_result(full.buffer())
            self._pending.clear()
        return future

    def _overflow(self) -> bool:
        """Tell whether NaN or infinity was handed over on any rank."""
        mine = self._exchanger.overflowed
        return self._skipping is not None and bool(self._skipping.allreduce(mine, MPI.LOR))

    def _gradients(self, bucket: Any) -> Iterator[tuple[str, Any]]:
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            name = self._names[id(parameter)]
            if name in self._exchanger.plan.net.tensors:
                yield name, gradient
            elif gradient.any():
                raise unplanned(name)

    def _find_names(self, one: Any) -> None:
        """Find the names of parameters in their model: DDP does not pass names to its hooks."""
        for found in gc.get_objects():
            if isinstance(found, DistributedDataParallel):
                parameters = trained(found.module)
                if any(parameter is one for parameter in parameters.values()):
                    check_fits(parameters, self._exchanger.plan, some_unused=True)
                    self._names = {id(p): n for n, p in parameters.items()}
                    return
        raise CommschedError("no DistributedDataParallel model has this bucket's parameters")

    def close(self) -> None:
        """End the exchange, on all ranks; without this call it ends with the script."""
        if self._end.forget():
            self._exchanger.__exit__(None, None, None)
            if self._skipping is not None:
                self._skipping.Free()
