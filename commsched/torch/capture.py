"""`commsched.torch.capture`: a net from a model that all ranks train for some steps."""

import copy
import os
import socket
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from mpi4py import MPI

from commsched.arrays import Array
from commsched.errors import CommschedError
from commsched.net import file as net_file
from commsched.net.graph import Layer, Net, Tensor
from commsched.net.measured import PROCESSOR, Measured
from commsched.net.rows import fit_rows
from commsched.net.sparsity import DENSE
from commsched.run.engine.memory_probe import ranks_of_this_node
from commsched.run.engine.probe import sleeping_barrier
from commsched.run.job import agree
from commsched.run.job.fabric import cores_of_host
from commsched.torch import handing_over
from commsched.torch.attach import started_by_mpi
from commsched.torch.gradients import STEPS, Gradients
from commsched.torch.module_graph import Edges, edges_of
from commsched.torch.observer import Observer, tensors_in
from commsched.torch.parameters import (
    DTYPES,
    bare_name,
    check_alike,
    check_kind,
    shape_of,
    sparse_embeddings,
)

WARM_UP = 3  # steps that are not measured
ALONE = 3  # steps of one rank while the others sleep
SHOWN = 8  # names in the source


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
    """Train on all ranks at once, without exchange, and return what was measured as a net.

    `loss(batch)` does the forward pass and returns a scalar. A layer is a module that has trained
    parameters of its own; layers stand in the opposite order of that in which their gradients are
    complete. Seconds are medians over `steps` steps after 3 others, means over ranks. A layer's
    forward seconds end with its module and begin with the end of the module before, so they hold
    what lies between: activations, attention, other modules. The loss belongs to the last module.
    The seconds before the first layer hold zeroing and the batch. Before all that, the first rank
    of each node does some steps while the others sleep, which tells how ranks slow each other.
    Model, optimizer and torch's random numbers are afterwards as before; `batches` begin anew if
    they end. `batch`: samples per rank; by default the first size of a batch's first tensor.

    A parameter that gets no gradient on any rank is refused; with `find_unused_parameters` it is
    left out of the net. What runs inside torch.compile counts as its outermost module. With `graph`
    torch.export then says which layers each layer reads, if it can trace the model; else they form
    a chain. The net's source says which, and why.

    What `attach` costs the computing thread is measured, too: handing a layer's gradients over
    counts as its backward, putting means back as the optimizer's. Large tensors get the decay of
    their gradients' magnitudes. With `record` rank 0 leaves samples of its gradients in that file,
    for `commsched plan --max-error E --gradients FILE`; both in steps after those that count.
    """
    comm = started_by_mpi(comm)
    if steps < 2:
        raise CommschedError(f"steps must be at least 2, got {steps}")
    agree.check_files({"record": record}, comm)
    path = None if record is None or comm.rank else Path(record)
    gradients = agree.on_all_ranks(lambda: Gradients(path), comm)
    observer = Observer(model)
    check_alike(observer.parameters, "trains", comm)
    for key, parameter in observer.parameters.items():
        check_kind(key, parameter)
    seen: list[Any] = []  # the inputs of the model's first forward pass
    see = model.register_forward_pre_hook(
        lambda _, inputs, named: seen.append((inputs, named)) if not seen else None,
        with_kwargs=True,
    )
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    random, source = torch.get_rng_state(), _Batches(batches)

    def one(
        keeps: bool = False, counts_bytes: bool = False, looks: Gradients | None = None
    ) -> float:
        return _step(observer, loss, source, optimizer, keeps, counts_bytes, looks)

    with observer:
        lonely, lasted = _alone(one, comm), list[float]()
        for step in range(-WARM_UP, steps + STEPS):
            keeps = 0 <= step < steps
            looks = gradients if step >= steps else None  # afterwards: it empties the caches
            took = agree.on_all_ranks(
                lambda keeps=keeps, last=step == steps, looks=looks: one(keeps, last, looks),  # type: ignore[misc]
                comm,
            )
            lasted += [took] if keeps else []
    crowd = float(np.mean(agree.gather_numbers(float(np.median(lasted)), comm)))
    see.remove()
    agree.on_all_ranks(gradients.write, comm)
    decays = _over_ranks(gradients.decays(observer.parameters), comm)
    known = zip(observer.parameters, decays, strict=True)
    observer.decay = {name: round(float(decay), 3) for name, decay in known if decay > 0}
    model.load_state_dict(before[0])
    optimizer.load_state_dict(before[1])
    torch.set_rng_state(random)
    what = f"commsched capture: medians of {steps} steps"
    inputs = seen[0] if graph and seen else None
    net = measured_net(
        observer,
        comm,
        name,
        batch or source.size,
        what,
        find_unused_parameters,
        inputs,
        1.0 if lonely is None else min(lonely / crowd, 1.0),
    )
    spent = agree.on_all_ranks(lambda: handing_over.measure(net, observer.parameters), comm)
    optimizer.zero_grad(set_to_none=True)
    return handing_over.added(net, _over_ranks(spent.reshape(-1), comm).reshape(2, -1))


def _alone(one: Callable[[], float], comm: MPI.Intracomm) -> float | None:
    """Return a step's seconds while the first rank of each node computes; None with one each."""
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


def measured_net(
    observer: Observer,
    comm: MPI.Intracomm,
    name: str,
    batch: int,
    what: str,
    some_unused: bool,
    inputs: tuple[Any, Any] | None = None,
    alone: float | None = None,
) -> Net:
    """Return what observers measured on all ranks as a net, equal on every rank.

    `alone`: seconds of a step of one rank alone over those of all ranks together, if known.

    With `inputs` of the model, positional and named ones, torch.export says what a layer reads.
    """
    half = observer.half or any(p.dtype is not torch.float32 for p in observer.parameters.values())
    on = Measured(
        device=PROCESSOR,
        precision="float16" if half else "float32",
        batch=batch,
        ranks=max(Counter(agree.gather_text(socket.gethostname(), comm)).values()),
        threads=torch.get_num_threads(),
        cores=cores_of_host(comm),
        working_set=agree.largest(_working_set(observer), comm),
        alone=alone,
        source=_facts(observer, comm, what),
    )
    made = agree.on_all_ranks(lambda: _net(observer, comm, name, on, some_unused), comm)
    if inputs is not None and comm.rank == 0:
        made = with_edges(made, observer, inputs)
    content = agree.broadcast_bytes(msgspec.json.encode(net_file.to_data(made)), comm)
    return net_file.from_data(msgspec.json.decode(content), name)


def _working_set(observer: Observer) -> float:
    """Return the bytes of parameters, gradients and what is kept for the backward pass."""
    held = sum(p.numel() * p.element_size() for p in observer.parameters.values())
    return 2.0 * float(held) + sum(observer.activation.values())


class _Batches:
    """The batches, again and again, and the first size of the first tensor."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches
        self._iterator = iter(batches)
        self.size = 1

    def next(self) -> Any:
        found = next(self._iterator, self)
        if found is self:
            self._iterator = iter(self._batches)
            found = next(self._iterator, self)
        if found is self:
            raise CommschedError("there are no batches to train on, or they can be read only once")
        self.size = next((len(t) for t in tensors_in(found) if t.ndim), 1)
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
    """Do one step, and return its seconds; whatever goes wrong ends the capture on all ranks."""
    try:
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
    except CommschedError:
        raise
    except Exception as error:
        traceback.print_exc()
        raise CommschedError(f"the script failed: {type(error).__name__}: {error}") from None


def check_loss(value: Any) -> None:
    """Refuse what backward() cannot begin with."""
    if not isinstance(value, torch.Tensor) or value.numel() != 1 or value.grad_fn is None:
        got = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise CommschedError(
            f"the loss must be one number that backward() can begin with, got {got}; return"
            " for example its mean()"
        )


def with_edges(net: Net, observer: Observer, inputs: tuple[Any, Any]) -> Net:
    """Let layers read what torch.export sees that they read, or stay a chain; the source says."""
    owners = {layer.name: [t.name for t in layer.tensors] for layer in net.layers}
    if observer.compiled:
        found: Edges | str = "it does not look into compiled modules"
    else:
        found = edges_of(observer.model, *inputs, owners)
    if isinstance(found, str):
        return replace(net, source=f"{net.source}; layers form a chain, by hooks alone ({found})")
    layers = tuple(replace(layer, after=found[layer.name]) for layer in net.layers)
    said = "seconds and order by hooks, what a layer reads by torch.export"
    return replace(net, layers=layers, source=f"{net.source}; {said}")


def _over_ranks(values: Array, comm: MPI.Intracomm) -> Array:
    """Return the mean over ranks, without ranks that have NaN: (n,)."""
    found = np.empty((comm.size, len(values)))
    comm.Allgather(np.asarray(values, np.float64), found)
    known = np.isfinite(found)
    total = np.where(known, found, 0.0).sum(axis=0)
    return np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan)


def _facts(observer: Observer, comm: MPI.Intracomm, what: str) -> str:
    """Say how it was measured, and what a net file has no field for."""
    load = agree.largest(os.getloadavg()[0], comm)
    frozen = [bare_name(n) for n, p in observer.model.named_parameters() if not p.requires_grad]
    parts = [f"{what}, means over {comm.size} ranks, load average {load:.1f}"]
    if observer.compiled:
        names = [name or type(observer.model).__name__ for name in observer.compiled]
        parts.append(f"compiled, each one layer: {', '.join(names[:SHOWN])}")
    for kind, names in (("tied", observer.tied), ("frozen", frozen)):
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            parts.append(f"{kind}: {', '.join(names[:SHOWN])}{more}")
    return "; ".join(parts)


def used_parameters(observer: Observer, ready: Array, some_unused: bool) -> dict[str, list[str]]:
    """Return the parameters of each layer that got a gradient; refuse others if all should."""
    names = list(observer.parameters)
    unused = {name for name, when in zip(names, ready, strict=True) if np.isnan(when)}
    if unused and not some_unused:
        raise CommschedError(
            f"parameter {next(n for n in names if n in unused)!r} never got a gradient on any rank;"
            " freeze it by requires_grad_(False), or capture and attach with"
            " find_unused_parameters=True"
        )
    kept = {k: [n for n in some if n not in unused] for k, some in observer.owners.items()}
    return {layer: some for layer, some in kept.items() if some}


def chained(
    observer: Observer, ready: Array, used: dict[str, list[str]], order: tuple[str, ...] = ()
) -> tuple[tuple[str, ...], dict[str, float]]:
    """Return the layers in forward order, and what the backward of each takes.

    The order is the opposite of that in which their gradients are complete, if it is not given.
    """
    when = dict(zip(observer.parameters, ready, strict=True))
    ends = {layer: max(when[n] for n in names) for layer, names in used.items()}
    backward = order[::-1] or tuple(sorted(ends, key=ends.__getitem__))
    reached = np.maximum.accumulate([0.0, *(ends[layer] for layer in backward)])
    return backward[::-1], dict(zip(backward, np.diff(reached), strict=True))


def no_parameter() -> CommschedError:
    """Say that there is nothing to train."""
    return CommschedError("the model trains no parameter")


def _net(
    observer: Observer, comm: MPI.Intracomm, name: str, on: Measured, some_unused: bool
) -> Net:
    ready = _over_ranks(observer.median_ready(), comm)
    forward = _over_ranks(observer.median_forward(), comm)
    used = used_parameters(observer, ready, some_unused)
    order, spent = chained(observer, ready, used)
    seconds = dict(zip(observer.owners, forward, strict=True))
    layers = [
        Layer(
            name=layer,
            after=order[place - 1 : place] if place else (),
            forward=float(seconds[layer]),
            backward=float(spent[layer]),
            activation=float(observer.activation[layer]),
            output=float(observer.output[layer]),
            tensors=tuple(tensor_of(observer, n) for n in used[layer]),
        )
        for place, layer in enumerate(order)
    ]
    if not layers:
        raise no_parameter()
    data, update = _over_ranks(observer.median_outside(), comm)
    return Net(
        name=name,
        layers=tuple(layers),
        batch=on.batch,
        measured=on,
        optimizer=float(update),
        data=float(data),
        source=on.source,
    )


def tensor_of(observer: Observer, name: str) -> Tensor:
    """Return a parameter as a net states it: the rows that batches hit, its gradients' decay."""
    parameter, hit = observer.parameters[name], observer.rows.get(name)
    law, lists = DENSE, False
    if hit:
        law, sparse = fit_rows(hit), {id(p) for p in sparse_embeddings(observer.model)}
        lists = law.law == "zipf" and id(parameter) in sparse
    return Tensor(
        name=name,
        shape=shape_of(parameter),
        dtype=DTYPES[parameter.dtype],
        sparsity=law,
        lists=lists,
        decay=observer.decay.get(name, 0.0),
    )
