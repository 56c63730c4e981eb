"""Cosines between each layer's gradient from a local loss and from the loss of the whole net."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from commsched.arrays import Array
from commsched.lab.convergence import table as convergence
from commsched.lab.convergence.cases import Case, plan_of
from commsched.lab.convergence.table import LayerCosine
from commsched.lab.convergence.tables import TABLES
from commsched.lab.convergence.trainings import ConvergenceRequest, Say, chosen, kept, path_of
from commsched.plan.model import Plan
from commsched.program.registry import STRATEGIES
from commsched.program.stages import grid, is_head
from commsched.strategies.local import chunks_of
from commsched.train.assignment import Settings
from commsched.train.forward_backward import forward_through, gradients
from commsched.train.in_process import InProcessTraining
from commsched.train.layers.heads import with_heads
from commsched.train.layers.layer import Gradients, TrainableNet
from commsched.train.registry import DATA, NETS
from commsched.train.samples import Data
from commsched.train.workers.local import LocalLossWorker, last_reads

Cosines = dict[str, float]  # by layer


def compare(wanted: ConvergenceRequest, folder: Path, say: Say) -> None:
    """Compare the gradients of all trained cases of strategy `local`; write the table after each.

    Each case is trained again at its rate, for each seed, on fold 0.
    """
    table = kept(wanted, folder)
    for case in chosen(wanted):
        old = table.case(case.name)
        if case.strategy != "local" or old is None or old.cosines:
            continue
        rate = float(old.trained.made["--rate"])
        found = [cosines_of(case, wanted, seed, rate) for seed in range(wanted.seeds)]
        layers = found[0][0]
        cosines = tuple(
            LayerCosine(
                layer=layer,
                curve=tuple(np.mean([[x[layer] for x in each] for each in found], 0).tolist()),
            )
            for layer in sorted(layers)
        )
        table = table.with_case(msgspec.structs.replace(old, cosines=cosines))
        convergence.write(path_of(wanted, folder), table)
        say(f"{case.name}: gradients of {len(layers)} layers compared, {wanted.seeds} seeds")


def cosines_of(case: Case, wanted: ConvergenceRequest, seed: int, rate: float) -> list[Cosines]:
    """Train a case of strategy `local`; compare gradients before, and after each period.

    The gradients are those of the mean loss over all training samples.
    """
    net = TABLES[wanted.table]
    plan = replace(plan_of(case, net, wanted.hosts, wanted.lanes), seed=seed)
    trained, data = NETS[net.name], DATA[NETS[net.name].data](0)
    settings = Settings(
        optimizer=case.optimizer, rate=rate, batch=net.batch, seed=seed, steps=net.steps
    )
    ranks = InProcessTraining(trained, data, plan, settings, LocalLossWorker)
    found = []
    for step in range(net.steps + 1):
        if step % net.period == 0:
            values: dict[str, Array] = {}
            for learner in ranks.learners:
                assert isinstance(learner, LocalLossWorker)
                learner.settle()
                values |= learner.values
            found.append(cosines(trained, plan, values, data))
        if step < net.steps:
            ranks.step(step)
    return found


def cosines(net: TrainableNet, plan: Plan, values: Mapping[str, Array], data: Data) -> Cosines:
    """Return the cosine of both gradients of each layer, over all of its tensors.

    `values` are the parameters of the net and of the plan's auxiliary heads.
    """
    whole = dict(gradients(net, values, data.train.inputs, data.train.targets)[1])
    return {
        layer: cosine(own, whole[layer])
        for layer, own in local_gradients(net, plan, values, data).items()
    }


def cosine(one: Gradients, other: Gradients) -> float:
    """Return the cosine of two gradients with the same tensors; 0 if one of them is zero."""
    a, b = (np.concatenate([each[n].reshape(-1) for n in sorted(one)]) for each in (one, other))
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else 0.0


def local_gradients(
    net: TrainableNet, plan: Plan, values: Mapping[str, Array], data: Data
) -> dict[str, Gradients]:
    """Return each layer's gradient from the local losses that reach the layer.

    Losses are means over the training samples.
    """
    params = STRATEGIES[plan.strategy].settings(plan)
    chunks = [
        [layer.name for stage in chunk for layer in stage.layers]
        for chunk in chunks_of(grid(plan, params), params)
    ]
    heads = [layer.name for layer in plan.net.layers if is_head(layer.name)]
    layers = {layer.name: layer for layer in with_heads(net, heads, last_reads(net, data))}
    found: dict[str, Gradients] = {}
    inputs, targets = data.train.inputs, data.train.targets
    for place, chunk in enumerate(chunks):
        reached = [chunk]
        if params["variant"] == "overlapping" and place + 1 < len(chunks):
            trunk = [name for name in chunk if not is_head(name)]
            reached.append(trunk + chunks[place + 1])
        for names in reached:
            part = replace(net, layers=tuple(layers[name] for name in names))
            for name, own in gradients(part, values, inputs, targets)[1]:
                if name in chunk and not is_head(name):
                    before = found.get(name, {})
                    found[name] = {n: g + before.get(n, 0) for n, g in own.items()}
        inputs = forward_through(
            [layers[name] for name in chunk if not is_head(name)], values, inputs
        )
    return found
