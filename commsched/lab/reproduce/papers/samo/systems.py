"""SAMO and the systems that its paper compares it with: their plans and batches on Summit."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from commsched.lab.reproduce.training_steps import Batch, gridded, memory, pipelined, simulated
from commsched.machine import file as machines
from commsched.machine.model import Machine
from commsched.net import file as nets
from commsched.net.graph import Layer, Net
from commsched.plan.model import Plan

PRUNED = 0.9  # share of the parameters
# Rings follow rank numbers; ranks are assigned to the nodes in turn.
METHOD = "ring:ranks+fp16"
SHALLOWEST, DEEPEST = 2, 32  # the paper prints messages and bubbles for AxoNN and SAMO
LIMIT = 15e9  # B of a GPU of 16 GB; assumption: 1 GB is for CUDA and NCCL
SEQUENCE = 2048  # tokens
# 1/s of Sputnik's kernels on a V100, in operations with kept weights: 27 % of 15.7e12 in float32.
# Source: Gale, Zaharia, Young & Elsen, "Sparse GPU kernels for deep learning", SC 2020, abstract;
# NVIDIA V100 data sheet.
SPARSE_RATE = 0.27 * 15.7e12


class Model(NamedTuple):
    """A net of the paper: its file, sizes and batch."""

    net: str
    hidden: int
    blocks: int
    batch: int  # sequences


MODELS = {
    "GPT-3 XL": Model("gpt3-1.3b", 2048, 24, 512),
    "GPT-3 2.7B": Model("gpt3-2.7b", 2560, 32, 512),
    "GPT-3 6.7B": Model("gpt3-6.7b", 4096, 32, 1024),
}
AXONN, SAMO, DEEPSPEED, SPUTNIK = SYSTEMS = ("AxoNN", "SAMO", "DeepSpeed-3D", "Sputnik")


@cache
def depth(name: str, system: str) -> int:
    """Return the least power of two of stages that each fit into a GPU's memory."""
    stages = SHALLOWEST
    while memory(plan_of(name, system, 128, stages)).total > LIMIT:
        stages *= 2
        assert stages <= DEEPEST
    return stages


def plan_of(name: str, system: str, gpus: int, stages: int) -> Plan:
    """Plan a system's batch on some GPUs, whose ranks are assigned to nodes in turn.

    AxoNN is strategy `samo` without pruning; Sputnik is `samo` with sparse products.
    """
    model = MODELS[name]
    machine = dealt(machines.load("summit"), gpus)
    if system == DEEPSPEED:
        return deepspeed(name, machine, stages)
    net = nets.load(model.net)
    return pipelined(
        with_sparse_products(net) if system == SPUTNIK else net,
        machine,
        "samo",
        METHOD,
        stages=stages,
        microbatches=model.batch * stages // gpus,
        pruned=0.0 if system == AXONN else PRUNED,
        recompute=model.blocks // stages,
        message_bytes=2.0 * SEQUENCE * model.hidden,
    )


def deepspeed(name: str, machine: Machine, stages: int, tensor: int = 1) -> Plan:
    """Plan a batch of DeepSpeed-3D: strategy `3d`, whose replicas share their state (ZeRO, 1)."""
    model = MODELS[name]
    return gridded(
        nets.load(model.net),
        machine,
        tensor=tensor,
        pipeline=stages,
        zero=1,
        microbatches=model.batch * stages * tensor // machine.size,
        recompute=model.blocks // stages,
        optimizer="adam",
    )


def with_sparse_products(net: Net) -> Net:
    """Return a net whose blocks multiply by the kept weights only, by Sputnik's kernels."""
    return replace(net, layers=tuple(_sparse(net.layers)))


def _sparse(layers: tuple[Layer, ...]) -> Iterator[Layer]:
    for layer in layers:
        if not (layer.block and layer.matrix):
            yield layer
            continue
        kept = (1 - PRUNED) / SPARSE_RATE
        yield replace(
            layer, forward=kept * layer.forward_flops, backward=kept * layer.backward_flops
        )


def dealt(machine: Machine, gpus: int) -> Machine:
    """Return the fewest nodes for these ranks, assigned to nodes in turn."""
    nodes = -(-gpus // machine.everyone.lanes)
    return replace(machine, node_of_rank=tuple(rank % nodes for rank in range(gpus)))


def filled(machine: Machine, gpus: int) -> Machine:
    """Return the fewest nodes for these ranks, each filled before the next."""
    return replace(
        machine, node_of_rank=tuple(rank // machine.everyone.lanes for rank in range(gpus))
    )


@cache
def batch(name: str, system: str, gpus: int, stages: int) -> Batch:
    """Simulate a batch in which every backward recomputes its forward."""
    return simulated(plan_of(name, system, gpus, stages))


def ruled(name: str, system: str, gpus: int) -> Batch:
    """Simulate a batch on the fewest stages that fit."""
    return batch(name, system, gpus, depth(name, system))
