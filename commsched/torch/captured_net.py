"""The net from the measurements of all ranks' observers."""

import os
import socket
from collections import Counter
from dataclasses import replace
from typing import Any

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
from commsched.run.engine.probe import sleeping_barrier
from commsched.run.job import agree
from commsched.run.job.fabric import Middle, cores_of_host, mean_or_median
from commsched.torch.module_graph import Edges, edges_of
from commsched.torch.observer import Observer
from commsched.torch.parameters import DTYPES, bare_name, no_parameter, shape_of, sparse_embeddings
from commsched.units import count

SHOWN = 8  # names in the source


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
    """Return the measurements of all ranks' observers as a net, equal on every rank.

    `alone`: seconds of a step of one rank by itself over those with all ranks, if known.

    With positional and named `inputs` of the model, torch.export tells the inputs of a layer.
    """
    ranks, threads, cores = load_of_host(comm)
    middle = mean_or_median(ranks * threads, cores)
    half = observer.half or any(p.dtype is not torch.float32 for p in observer.parameters.values())
    on = Measured(
        device=PROCESSOR,
        precision="float16" if half else "float32",
        batch=batch,
        ranks=ranks,
        threads=threads,
        cores=cores,
        working_set=agree.largest(_working_set(observer), comm),
        alone=alone,
        source=_facts(observer, comm, f"{what}: {middle.__name__}s of {observer.steps} steps"),
    )
    made = agree.on_all_ranks(lambda: _net(observer, comm, name, on, some_unused, middle), comm)
    if inputs is not None and comm.rank == 0:
        made = with_edges(made, observer, inputs)
    sleeping_barrier(comm)  # other ranks leave the cores to rank 0
    return net_file.from_data(agree.broadcast_data(net_file.to_data(made), comm), name)


def load_of_host(comm: MPI.Intracomm) -> tuple[int, int, float]:
    """Return the most ranks on a host, the threads of each, and the cores that they share."""
    ranks = max(Counter(agree.gather_text(socket.gethostname(), comm)).values())
    return ranks, torch.get_num_threads(), cores_of_host(comm)


def _working_set(observer: Observer) -> float:
    """Return the bytes of parameters, gradients and arrays kept for the backward pass."""
    held = sum(p.numel() * p.element_size() for p in observer.parameters.values())
    return 2.0 * float(held) + sum(observer.activation.values())


def with_edges(net: Net, observer: Observer, inputs: tuple[Any, Any]) -> Net:
    """Set the inputs of layers by torch.export, or keep the chain; the source tells which."""
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


def over_ranks(values: Array, comm: MPI.Intracomm) -> Array:
    """Return the mean over ranks, leaving out NaN: (n,)."""
    found = agree.gather_array(np.asarray(values, np.float64), comm)
    known = np.isfinite(found)
    total = np.where(known, found, 0.0).sum(axis=0)
    return np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan)


def _facts(observer: Observer, comm: MPI.Intracomm, what: str) -> str:
    """Describe the measurement, and facts for which a net file has no field."""
    load = agree.largest(os.getloadavg()[0], comm)
    frozen = [bare_name(n) for n, p in observer.model.named_parameters() if not p.requires_grad]
    parts = [f"{what}, means over {count(comm.size, 'rank')}, load average {load:.1f}"]
    if observer.compiled:
        names = [name or type(observer.model).__name__ for name in observer.compiled]
        parts.append(f"compiled, each one layer: {', '.join(names[:SHOWN])}")
    for kind, names in (("tied", observer.tied), ("frozen", frozen)):
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            parts.append(f"{kind}: {', '.join(names[:SHOWN])}{more}")
    return "; ".join(parts)


def used_parameters(observer: Observer, ready: Array, some_unused: bool) -> dict[str, list[str]]:
    """Return the parameters of each layer that got a gradient; raise an error if all should have.

    An expert that no token chose counts as used if another expert of its mixture was used.
    """
    names = list(observer.parameters)
    unused = {name for name, when in zip(names, ready, strict=True) if np.isnan(when)}
    mixtures = {observer.experts[n] for n in observer.experts if n not in unused}
    unused -= {name for name, layer in observer.experts.items() if layer in mixtures}
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
    """Return the layers in forward order, and the backward time of each in the clock's unit.

    Without a given order, it is the reverse of the order in which gradients become complete.
    """
    when = dict(zip(observer.parameters, ready, strict=True))
    ends = {layer: np.nanmax([when[n] for n in names]) for layer, names in used.items()}
    backward = order[::-1] or tuple(sorted(ends, key=ends.__getitem__))
    reached = np.maximum.accumulate([0.0, *(ends[layer] for layer in backward)])
    return backward[::-1], dict(zip(backward, np.diff(reached), strict=True))


def _net(
    observer: Observer,
    comm: MPI.Intracomm,
    name: str,
    on: Measured,
    some_unused: bool,
    middle: Middle,
) -> Net:
    ready = over_ranks(observer.ready(middle), comm)
    forward = over_ranks(observer.forward_of_layers(middle), comm)
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
    data, update = over_ranks(observer.outside(middle), comm)
    return Net(
        name=name,
        layers=tuple(layers),
        batch=on.batch,
        measured=on,
        optimizer=float(update),
        apply=0.0,
        data=float(data),
        source=on.source,
    )


def tensor_of(observer: Observer, name: str) -> Tensor:
    """Return a parameter as a net's tensor, with its gradients' non-zeros and decay."""
    parameter, hit = observer.parameters[name], observer.rows.get(name)
    law, lists = DENSE, False
    if hit:
        law, sparse = fit_rows(hit), {id(p) for p in sparse_embeddings(observer.model)}
        lists = law.law == "zipf" and id(parameter) in sparse
    if law == DENSE:
        law = observer.laws.get(name, DENSE)
    return Tensor(
        name=name,
        shape=shape_of(parameter),
        dtype=DTYPES[parameter.dtype],
        sparsity=law,
        lists=lists,
        decay=observer.decay.get(name, 0.0),
    )
