"""The contenders: our plans by `attach`, and variants of DistributedDataParallel over gloo."""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from commsched.exchange.pair import LIBRARY
from commsched.exchange.registry import find_method
from commsched.lab.peers.models import PeerTraining
from commsched.lab.peers.record import CAP
from commsched.planner.method_schedule import begun
from commsched.program.read_plan import read_plan
from commsched.program.registry import STRATEGIES
from commsched.run.job import agree
from commsched.torch.attach import attach

CAPS = (1, 5, CAP, 100)  # MB of a bucket of DistributedDataParallel
POWER_RANKS = (1, 4)  # of PowerSGD
BEGIN = 2  # step from which PowerSGD and our lossy plans compress

Wrap = Callable[[PeerTraining], Any]  # -> module that replaces the model


class Contender:
    """A model with its optimizer and a way to average its gradients."""

    def __init__(self, training: PeerTraining, wrap: Wrap) -> None:
        self._training = training
        self._computes = wrap(training)
        self._done = 0

    def step(self) -> None:
        """Train one step."""
        batches = self._training.batches
        self._training.optimizer.zero_grad()
        value = self._training.loss(self._computes, batches[self._done % len(batches)])
        value.backward()
        self._training.optimizer.step()
        self._done += 1

    def finish(self) -> None:
        """Apply the updates that are delayed until a parameter is read."""
        self._training.model.state_dict()

    def held_out(self) -> float:
        """Return the mean loss over the held-out batches."""
        model = self._training.model
        model.eval()
        with torch.no_grad():
            losses = [float(self._training.loss(model, b)) for b in self._training.held_out]
        model.train()
        return sum(losses) / len(losses)


def join_gloo(comm: MPI.Intracomm) -> None:
    """Initialise torch.distributed with the ranks that MPI started."""
    with closing(socket.socket()) as probe:
        probe.bind(("", 0))
        here = f"{socket.gethostbyname(socket.gethostname())}:{probe.getsockname()[1]}"
    place = agree.gather_text(here, comm)[0]
    dist.init_process_group("gloo", f"tcp://{place}", rank=comm.rank, world_size=comm.size)


def alone(training: PeerTraining) -> Contender:
    """Return the contender that exchanges nothing: no peer and no plan can be faster."""
    return Contender(training, lambda training: training.model)


def contenders(
    make: Callable[[], PeerTraining],
    plans: Sequence[Path],
    comm: MPI.Intracomm,
    caps: Sequence[int] = CAPS,
) -> Iterator[tuple[str, Contender]]:
    """Yield each contender with its name; all ranks make the contenders in the same order."""
    for plan in plans:
        yield f"plan {plan.stem}", Contender(make(), partial(_attached, plan, comm))
    for cap in caps:
        yield f"ddp {cap} MB", Contender(make(), partial(_ddp, cap))
    if _sparse(make().model):
        return  # DistributedDataParallel's hooks take dense buckets only
    # Its bf16 hook needs NCCL.
    hook = default_hooks.fp16_compress_hook
    yield "ddp fp16", Contender(make(), partial(_hooked, hook, lambda: None))
    for rank in POWER_RANKS:
        state = partial(_PowerSgd, rank)
        yield f"ddp powersgd:{rank}", Contender(make(), partial(_hooked, _PowerSgd.hook, state))


class _PowerSgd:
    """PyTorch's PowerSGD with a process group for each bucket.

    A bucket's later sums begin in gloo's threads when its earlier sums end, so their order among
    buckets differs between ranks. Buckets of one group would receive each other's messages, and
    gloo would abort.
    """

    def __init__(self, rank: int) -> None:
        self._rank, self._steps = rank, 0
        self._states: dict[int, Any] = {}  # bucket -> its state

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Sum a bucket; all ranks begin the buckets in the same order."""
        state = self._states.get(bucket.index())
        if state is None:
            state = self._states[bucket.index()] = powerSGD_hook.PowerSGDState(
                dist.new_group(), self._rank, start_powerSGD_iter=BEGIN, warm_start=True
            )
        state.iter = self._steps  # a state counts steps at the last bucket only
        self._steps += bucket.is_last()
        return powerSGD_hook.powerSGD_hook(state, bucket)


def _attached(path: Path, comm: MPI.Intracomm, training: PeerTraining) -> Any:
    """Attach a plan; one that hides exchanges under the next forward pass needs the optimizer."""
    plan = read_plan(path)
    if not all(find_method(launch.method).lossless for launch in plan.launches):
        plan = begun(plan, BEGIN, LIBRARY)
    late = STRATEGIES[plan.strategy].settings(plan)["overlap"] == "forward"
    attach(training.model, plan, comm, update_in_forward=training.optimizer if late else None)
    return training.model


def _ddp(cap: float, training: PeerTraining) -> Any:
    model = training.model
    return torch.nn.parallel.DistributedDataParallel(
        model, bucket_cap_mb=cap, gradient_as_bucket_view=not _sparse(model)
    )


def _hooked(hook: Any, state: Callable[[], Any], training: PeerTraining) -> Any:
    wrapped = _ddp(CAP, training)
    wrapped.register_comm_hook(state(), hook)
    return wrapped


def _sparse(model: Any) -> bool:
    return any(getattr(module, "sparse", False) for module in model.modules())
