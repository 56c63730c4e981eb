"""The profile of a trainable net as a graph for planning: seconds, kept bytes, sparse gradients."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import gcd
from typing import Any

import numpy as np

from commsched.arrays import Array
from commsched.net.experts import Experts
from commsched.net.graph import Layer, Net, Tensor
from commsched.net.measured import PROCESSOR, Measured
from commsched.net.rows import Nonzeros
from commsched.net.sparsity import DENSE
from commsched.train.forward_backward import ForwardBackward
from commsched.train.layers.layer import Kept, TrainableLayer, TrainableNet, as_float16
from commsched.train.optimizers import LossScale
from commsched.train.registry import DATA
from commsched.train.sample_order import batch_of, check_batch

BATCHES = 16  # profiled batches, after one warm-up batch


@dataclass
class SeenBatches:
    """Measurements of a net over some batches."""

    forward: list[list[float]] = field(default_factory=list)  # [batch][layer], s
    backward: list[list[float]] = field(default_factory=list)
    activation: list[int] = field(default_factory=list)  # B of each layer
    output: list[int] = field(default_factory=list)  # B of each layer
    experts: dict[int, list[Experts]] = field(default_factory=dict)  # layer -> of each batch
    nonzeros: dict[str, Nonzeros] = field(default_factory=dict)  # of gradients, by tensor


def profile_net(
    net: TrainableNet,
    batch: int,
    seed: int = 0,
    fold: int = 0,
    half: bool = False,
    module: Any = np,
    settled: Callable[[], None] = lambda: None,
) -> Net:
    """Run some batches of one rank, `batch` samples each, and time each layer.

    Arrays are of `module`; `settled` waits until all work queued on its device is done.

    Seconds are medians on this machine, in this process. Gradients get the sparsity law of these
    batches. With `half` layers compute in 16 bits.
    """
    train = DATA[net.data](fold).train
    check_batch(batch, len(train), 1)
    parameters, seen = {n: module.asarray(v) for n, v in net.start(seed).items()}, SeenBatches()
    if half:
        parameters = {name: values.astype(np.float16) for name, values in parameters.items()}
    for step in range(-1, BATCHES):
        some = train.of(batch_of(seed, max(step, 0), batch, len(train)))
        walk = ForwardBackward(
            net, parameters, module.asarray(as_float16(some.inputs) if half else some.inputs)
        )
        weight = (LossScale().value if half else 1.0) / some.targets.size
        targets, kept = module.asarray(some.targets), seen if step >= 0 else SeenBatches()
        with np.errstate(over="ignore", invalid="ignore"):  # in 16 bits
            _time_batch(net, walk, targets, weight, kept, settled)
    source = f"commsched profile: medians of {BATCHES} batches of real data on one rank"
    precision = "float16" if half else "float32"
    on = Measured(device=PROCESSOR, precision=precision, batch=batch, source=source)
    return Net(
        name=net.name,
        layers=tuple(_layers(net, seen, half)),
        batch=batch,
        measured=on,
        source=source,
    )


def _sharing(layer: TrainableLayer, output: int, half: bool) -> dict[str, Any]:
    """Return the fields of a layer that tensor-parallel ranks can share, from its output bytes.

    Each rank keeps the whole inputs of the columns, and of the norm before: twice the outputs.
    """
    cuts = [start.cut for start in layer.tensors.values() if start.cut is not None]
    if not cuts or any(cut.experts for cut in cuts):
        return {}
    summed = output // (2 if half else 4)
    parts = gcd(*(cut.parts for cut in cuts))
    return {"cut": "pair", "parts": parts, "summed": summed, "whole": 2.0 * output}


def _layers(net: TrainableNet, seen: SeenBatches, half: bool) -> list[Layer]:
    """Return the net's layers with their measurements."""
    forward, backward = (np.median(s, axis=0) for s in (seen.forward, seen.backward))
    layers: list[Layer] = []
    before: tuple[str, ...] = ()
    for i, layer in enumerate(net):
        experts = _mean(seen.experts[i]) if i in seen.experts else None
        tensors = [
            Tensor(
                name=name,
                shape=start.shape,
                sparsity=DENSE if experts else seen.nonzeros[name].law(),
                axis=-1 if start.cut is None else start.cut.axis,
            )
            for name, start in layer.tensors.items()
        ]
        layers.append(
            Layer(
                name=layer.name,
                after=before,
                tensors=tuple(tensors),
                forward=float(forward[i]),
                backward=float(backward[i]),
                activation=float(seen.activation[i]),
                output=float(seen.output[i]),
                experts=experts,
                **_sharing(layer, seen.output[i], half),
            )
        )
        before = (layer.name,)
    return layers


def _mean(batches: list[Experts]) -> Experts:
    """Return experts with the mean load of some batches."""
    load = np.mean([each.load for each in batches], axis=0)
    return replace(batches[0], load=tuple(load.tolist()))


def _time_batch(
    net: TrainableNet,
    walk: ForwardBackward,
    targets: Array,
    weight: float,
    seen: SeenBatches,
    settled: Callable[[], None],
) -> None:
    """Go forward and backward once, and read the clock after each layer."""
    places = range(len(net.layers))
    settled()
    times, seen.output = [time.perf_counter()], []
    for i in places:
        walk.forward(i)
        settled()
        times.append(time.perf_counter())
        seen.output.append(walk.values.nbytes)
    seen.forward.append(np.diff(times).tolist())
    seen.activation = [sum(kept_bytes(walk.activations(i), set())) for i in places]
    for i, layer in enumerate(net.layers):
        routed = layer.routed(walk.activations(i))
        if routed is not None:
            seen.experts.setdefault(i, []).append(routed)
    walk.score(targets, weight)
    settled()
    took = {}
    for i in reversed(places):
        begun = time.perf_counter()
        found = walk.backward(i)
        settled()
        took[i] = time.perf_counter() - begun
        for name, gradient in found.items():
            seen.nonzeros.setdefault(name, Nonzeros()).add(gradient != 0)
    seen.backward.append([took[i] for i in places])


def kept_bytes(kept: Kept, counted: set[int]) -> Iterator[int]:
    """Count the bytes of all arrays that a layer keeps, each array once."""
    if isinstance(kept, list | tuple):
        for part in kept:
            yield from kept_bytes(part, counted)
    elif hasattr(kept, "nbytes") and id(kept) not in counted:
        counted.add(id(kept))
        yield kept.nbytes
