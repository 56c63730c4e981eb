"""The cost of `attach` for the computing thread: handing over gradients, putting back means."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from commsched import units
from commsched.arrays import Array
from commsched.machine import file as machine_file
from commsched.net.graph import Layer, Net
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.run.exchanger import Exchanger
from commsched.torch.parameters import handed_over, no_gradient, put_mean

STEPS = 6  # the first one does not count


def measure(net: Net, parameters: Mapping[str, Any]) -> Array:
    """Return the thread's seconds per tensor, handed over and put back: (2, tensors).

    The parameters need gradients. An Exchanger of this rank alone takes the gradients, so that no
    rank waits for others; processor time does not include the exchange in other threads.
    """
    alone = replace(machine_file.load("localhost"), node_of_rank=(0,), overrides={})
    lists = {t.name: "all-gather+coo" for t in net.tensors.values() if t.lists}
    plan = make_plan(Request(net=net, machine=alone, force=lists), "ddp-25mb")
    given = {
        n: parameters[n] for layer in net.layers[::-1] for n in (t.name for t in layer.tensors)
    }
    spent = np.zeros((STEPS, 2, len(given)))
    place = {name: at for at, name in enumerate(net.tensors)}
    for parameter in given.values():
        if parameter.grad is not None:  # the loss may have diverged
            _values(parameter.grad.detach()).nan_to_num_()
    with Exchanger(plan, MPI.COMM_SELF) as exchanger, torch.no_grad():
        for step in spent:
            for name, parameter in given.items():
                begun = time.thread_time()
                if parameter.grad is None:  # this rank did not use the parameter
                    ready = no_gradient(parameter, net.tensors[name].lists)
                else:
                    ready = handed_over(name, parameter.grad)
                exchanger.ready(name, ready, lent=True)
                step[0, place[name]] = time.thread_time() - begun
            for name in exchanger.names:
                begun = time.thread_time()
                put_mean(given[name], exchanger.wait(name), overflow=False)
                step[1, place[name]] = time.thread_time() - begun
    median: Array = np.median(spent[1:], axis=0)
    return median


def _values(gradient: Any) -> Any:
    return gradient if gradient.layout is torch.strided else gradient._values()


def added(net: Net, spent: Array) -> Net:
    """Add the result of `measure` to the backward of each layer, and before the update."""
    hands = dict(zip(net.tensors, spent[0].tolist(), strict=True))
    before, after = float(spent[0].sum()), float(spent[1].sum())

    def later(layer: Layer) -> Layer:
        return replace(
            layer, backward=(layer.backward or 0.0) + sum(hands[t.name] for t in layer.tensors)
        )

    return replace(
        net,
        layers=tuple(later(layer) for layer in net.layers),
        apply=after,
        source=f"{net.source}; backward has {units.seconds(before)} of handing gradients over",
    )
