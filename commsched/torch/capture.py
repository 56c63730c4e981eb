"""`commsched.torch.capture`: a net from a model that all ranks train for some steps."""

import copy
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from commsched.errors import CommschedError
from commsched.net.experts import Experts
from commsched.net.graph import Net
from commsched.run.engine.memory_probe import ranks_of_this_node
from commsched.run.engine.probe import sleeping_barrier
from commsched.run.job import agree
from commsched.run.job.fabric import mean_or_median
from commsched.torch import attach_cost
from commsched.torch.arrays import check_on_host
from commsched.torch.attach import started_by_mpi
from commsched.torch.captured_net import load_of_host, measured_net, over_ranks
from commsched.torch.choices import Choices, with_experts
from commsched.torch.gradients import STEPS, Gradients
from commsched.torch.hooks import some_ours
from commsched.torch.mixtures import mixtures_of
from commsched.torch.observer import Observer, check_takes_hooks, tensors_in
from commsched.torch.parameters import check_alike, check_kind, trained
from commsched.torch.states import Buffers

WARM_UP = 3  # steps that are not measured
ALONE = 3  # steps of one rank while the other ranks sleep


def capture(
    model: Any,
    loss: Callable[[Any], Any],
    batches: Iterable[Any],
    optimizer: Any,
    comm: MPI.Intracomm | None = None,
    *,
    name: str = "captured",
    steps: int = 10,
    batch: int | None = None,
    find_unused_parameters: bool = False,
    graph: bool = True,
    record: str | Path | None = None,
) -> Net:
    """Train on all ranks at once, without exchange, and return the measurements as a net.

    `loss(batch)` computes the forward pass and returns a scalar. A layer is a module that directly
    owns trained parameters; layers are in the reverse order in which their gradients become
    complete. Seconds are means over ranks of medians over `steps` steps after 3 others; if ranks
    share cores, of means over these steps. A layer's forward seconds end with its module and begin
    at the end of the previous module, so they include activations, attention and other modules
    between. The loss belongs to the last module. The seconds before the first layer include zeroing
    and the batch. At first, one rank of each node does some steps while the others sleep, which
    shows how much ranks slow each other.
    Model, optimizer and torch's random numbers are restored afterwards; `batches` begin anew if
    they end. `batch`: samples per rank; default: first size of the first batch's first tensor.

    A parameter that gets no gradient on any rank is an error; with `find_unused_parameters` it is
    left out of the net. A compiled module counts as one layer with all modules inside. With `graph`
    torch.export tells the layers that each layer reads, if it can trace the model; otherwise the
    layers form a chain. The net's source tells which, and why.

    The cost of `attach` for the computing thread is included: handing over a layer's gradients
    counts as its backward, putting back means as the optimizer's. Large tensors get the density of
    their gradients and the decay of their magnitudes. With `record` rank 0 writes samples of its
    gradients to that file, for `commsched plan --max-error E --gradients FILE`. Gradients are
    examined in steps after the timed ones.
    """
    comm = started_by_mpi(comm)
    if steps < 2:
        raise CommschedError(f"steps must be at least 2, got {steps}")
    check_batch(batch)
    agree.check_files({"record": record}, comm)
    path = None if record is None or comm.rank else Path(record)
    gradients = agree.on_all_ranks(lambda: Gradients(path), comm)
    parameters = trained(model)
    check_alike(parameters, "trains", comm)
    for key, parameter in parameters.items():
        check_kind(key, parameter)
    check_on_host(parameters, "capture")
    agree.on_all_ranks(lambda: _check_free(parameters), comm)
    agree.on_all_ranks(lambda: check_takes_hooks(model), comm)
    seen: list[Any] = []  # the inputs of the model's first forward pass
    see = model.register_forward_pre_hook(
        lambda _, inputs, named: seen.append((inputs, named)) if not seen else None,
        with_kwargs=True,
    )
    buffers = Buffers(model)
    before = copy.deepcopy((buffers.leave_out(model.state_dict()), optimizer.state_dict()))
    mine = {id(parameter) for parameter in model.parameters()}
    trained_too = [p for g in optimizer.param_groups for p in g["params"] if id(p) not in mine]
    others = [(p, p.detach().clone()) for p in trained_too]
    random, source = torch.get_rng_state(), _Batches(batches)
    choices, mixtures = _recognised(model, loss, source, comm)
    observer = Observer(model, experts=mixtures)

    def one(
        keeps: bool = False, counts_bytes: bool = False, looks: Gradients | None = None
    ) -> float:
        compute = loss if looks is None else choices.watching(loss)
        return _step(observer, compute, source, optimizer, keeps, counts_bytes, looks)

    with observer:
        lonely, lasted = _alone(one, comm), list[float]()
        for step in range(-WARM_UP, steps + STEPS):
            keeps = 0 <= step < steps
            looks = gradients if step >= steps else None  # untimed: it empties the caches
            took = agree.on_all_ranks(
                lambda keeps=keeps, last=step == steps, looks=looks: one(keeps, last, looks),  # type: ignore[misc]
                comm,
            )
            lasted += [took] if keeps else []
    ranks, threads, cores = load_of_host(comm)
    own = float(mean_or_median(ranks * threads, cores)(lasted))
    crowd = float(np.mean(agree.gather_numbers(own, comm)))
    see.remove()
    agree.on_all_ranks(gradients.write, comm)
    decays = over_ranks(gradients.decays(observer.parameters), comm)
    known = zip(observer.parameters, decays, strict=True)
    observer.laws = gradients.laws()
    observer.decay = {name: round(float(decay), 3) for name, decay in known if decay > 0}
    buffers.restore()
    model.load_state_dict(before[0], strict=False)  # `before` has no buffers
    with torch.no_grad():
        for parameter, values in others:
            parameter.copy_(values)
    optimizer.load_state_dict(before[1])
    torch.set_rng_state(random)
    inputs = seen[0] if graph and seen else None
    net = measured_net(
        observer,
        comm,
        name,
        batch or source.size,
        "commsched capture",
        find_unused_parameters,
        inputs,
        1.0 if lonely is None else min(lonely / crowd, 1.0),
    )
    net = with_experts(net, choices.over_ranks(comm), mixtures)
    spent = agree.on_all_ranks(lambda: attach_cost.measure(net, observer.parameters), comm)
    optimizer.zero_grad(set_to_none=True)
    return attach_cost.added(net, over_ranks(spent.reshape(-1), comm).reshape(2, -1))


def _recognised(
    model: Any, loss: Callable[[Any], Any], batches: "_Batches", comm: MPI.Intracomm
) -> tuple[Choices, dict[str, str]]:
    """Return a watch over the choices of tokens, and parameters of experts with their layers.

    Modules are a mixture of experts if a rank sees a token choose among them in a forward pass; for
    other candidates the watch can tell why they are not a mixture.
    """
    choices = Choices(model, mixtures_of(model))

    def work() -> None:
        with _script():
            choices.watching(loss)(batches.next())

    if choices.seen:
        agree.on_all_ranks(work, comm)
    seen = choices.over_ranks(comm)
    whole = type(model).__name__
    layers = {
        name: each.mixture.layer or whole
        for each in seen
        if isinstance(each.experts, Experts)
        for name in each.mixture.stacks
    }
    return choices, layers


def _alone(one: Callable[[], float], comm: MPI.Intracomm) -> float | None:
    """Return a step's seconds if only the first rank of each node computes; None with one each."""
    local, found = ranks_of_this_node(comm), list[float]()
    first, several = local.rank == 0, agree.largest(local.size, comm) > 1
    local.Free()
    if not several:
        return None

    def work() -> None:
        sleeping_barrier(comm)
        try:
            found.extend(one() for _ in range(WARM_UP + ALONE if first else 0))
        finally:
            sleeping_barrier(comm)

    agree.on_all_ranks(work, comm)
    own = float(np.median(found[WARM_UP:])) if found else 0.0
    return float(np.mean([seconds for seconds in agree.gather_numbers(own, comm) if seconds]))


class _Batches:
    """The batches in an endless loop, and the first size of the first batch's first tensor."""

    def __init__(self, batches: Iterable[Any]) -> None:
        check_batches(batches)
        self._batches = batches
        self._iterator = iter(batches)
        self.size = 0  # samples of the first batch; 0 before it

    def next(self) -> Any:
        found = next(self._iterator, self)
        if found is self:
            self._iterator = iter(self._batches)
            found = next(self._iterator, self)
        if found is self:
            raise CommschedError("there are no batches to train on, or they can be read only once")
        self.size = self.size or next((len(t) for t in tensors_in(found) if t.ndim), 1)
        return found


def _step(
    observer: Observer,
    loss: Callable[[Any], Any],
    batches: _Batches,
    optimizer: Any,
    keeps: bool,
    counts_bytes: bool,
    looks_at: Gradients | None,
) -> float:
    """Do one step, and return its seconds; any error ends the capture on all ranks."""
    with _script():
        begun = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        batch = batches.next()
        loaded = time.perf_counter()
        value = observer.forward(lambda: loss(batch), counts_bytes)
        check_loss(value)
        observer.backward(value)
        stepped = time.perf_counter()
        optimizer.step()
        ended = time.perf_counter()
        observer.end(keeps, loaded - begun, ended - stepped)
        if looks_at is not None:
            looks_at.take(observer.parameters)
    return ended - begun


@contextmanager
def _script() -> Iterator[None]:
    """Turn an exception of the user's script into one sentence."""
    try:
        yield
    except CommschedError:
        raise
    except Exception as error:
        traceback.print_exc()
        raise CommschedError(f"the script failed: {type(error).__name__}: {error}") from None


def check_batch(batch: int | None) -> None:
    """Reject a batch without samples."""
    if batch is not None and batch < 1:
        raise CommschedError(f"batch must be at least 1, got {batch}")


def _check_free(parameters: Mapping[str, Any]) -> None:
    """Reject a model whose steps wait for other ranks: one rank also does some steps alone."""
    if any(map(some_ours, parameters.values())):
        raise CommschedError(
            "the ranks exchange this model's gradients; capture it before attach, or after close()"
        )


def check_batches(batches: Any) -> None:
    """Reject an object that cannot be read batch by batch."""
    if not (hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")):
        raise CommschedError(
            "the batches must be something to iterate over, such as a list or a DataLoader, got"
            f" {type(batches).__name__}"
        )


def check_loss(value: Any) -> None:
    """Reject a loss with which backward() cannot begin."""
    if not isinstance(value, torch.Tensor) or value.numel() != 1 or value.grad_fn is None:
        got = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise CommschedError(
            f"the loss must be one number that backward() can begin with, got {got}; return"
            " for example its mean()"
        )
