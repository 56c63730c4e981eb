"""`commsched bench torch-overhead`: the cost of commsched on a script's computing thread."""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional

from commsched.lab.bench.row import BenchRow
from commsched.machine import file as machine_file
from commsched.net.graph import Net
from commsched.plan.model import Plan
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.run.exchanger import Exchanger
from commsched.run.job import agree
from commsched.run.session import errors_end_the_job
from commsched.torch.attach import attach
from commsched.torch.capture import capture
from commsched.torch.parameters import handed_over, trained
from commsched.units import seconds as in_words

TENSORS, SMALL = 100, 16  # tensors that are handed over; rows of the small ones
WIDTH, ROWS, DEEP = 256, 2048, 12  # sizes of the net that hides its exchanges
STEPS, BLOCK, ROUNDS = 40, 4, 10  # steps of a hand-over; whole steps in a row; turns
CLASSES, SIZE = 1000, 224  # of ResNet-50: classes, pixels per side


class Bottleneck(nn.Module):  # type: ignore[misc]
    """Three convolutions added to their input (He et al., CVPR 2016)."""

    def __init__(self, before: int, inside: int, stride: int) -> None:
        super().__init__()
        after = 4 * inside
        self.one = nn.Conv2d(before, inside, 1, bias=False)
        self.two = nn.Conv2d(inside, inside, 3, stride, 1, bias=False)
        self.three = nn.Conv2d(inside, after, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (inside, inside, after))
        self.short: Any = nn.Identity()
        if stride != 1 or before != after:
            short = nn.Conv2d(before, after, 1, stride, bias=False)
            self.short = nn.Sequential(short, nn.BatchNorm2d(after))

    def forward(self, x: Any) -> Any:
        inner = functional.relu(self.norms[0](self.one(x)))
        inner = functional.relu(self.norms[1](self.two(inner)))
        return functional.relu(self.norms[2](self.three(inner)) + self.short(x))


def resnet50() -> Any:
    """Build ResNet-50, of 25,557,032 parameters."""
    layers: list[Any] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    before = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for block in range(count):
            stride = 2 if stage and not block else 1
            layers.append(Bottleneck(before, 64 * 2**stage, stride))
            before = 256 * 2**stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, CLASSES))


def rows(timeout: float) -> Iterator[BenchRow]:
    """Measure the hand-over, steps with and without attach and recording, and capture."""
    with errors_end_the_job(MPI.COMM_WORLD):
        yield from _rows(MPI.COMM_WORLD, timeout)


def _rows(comm: MPI.Intracomm, timeout: float) -> Iterator[BenchRow]:
    for width, what in ((SMALL, "small tensors"), (256, "256 kB beside biases")):
        spent = agree.largest(_handing_over(width, comm, timeout), comm)
        text = f"{TENSORS} tensors, processor time of the computing thread"
        yield BenchRow(f"handing over, a tensor: {what}", spent, text, "<= 20 us")
    alone, attached, recorded = _hidden_steps(comm, timeout)
    extra = f"{attached / alone - 1:+.1%} over {in_words(alone)} without"
    yield BenchRow("attach, all exchanges hidden, a step", attached, extra, "<= +3 %")
    extra = f"{recorded / attached - 1:+.1%} over attach alone"
    yield BenchRow("with a timeline, a step", recorded, extra, "<= +1 %")
    begun = time.perf_counter()
    net = _captured(resnet50(), torch.randn(1, 3, SIZE, SIZE), comm, 10, graph=True)
    text = f"{len(net.layers)} layers, {net.numel} parameters, {comm.size} ranks"
    yield BenchRow("capture of ResNet-50, batch 1", time.perf_counter() - begun, text, "<= 60 s")


def _handing_over(width: int, comm: MPI.Intracomm, timeout: float) -> float:
    """Return the computing thread's seconds of one hand-over, without PyTorch's own hook."""
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(TENSORS // 2)))
    plan = _planned(_captured(model, torch.randn(4, width), comm, 2), comm)
    spent = 0.0
    with Exchanger(plan, comm, timeout=timeout) as exchanger:
        gradients = [(n, torch.randn_like(p)) for n, p in reversed(trained(model).items())]
        for step in range(STEPS + 2):
            begun = time.thread_time()
            for name, gradient in gradients:
                exchanger.ready(name, handed_over(name, gradient), lent=True)
            if step >= 2:
                spent += time.thread_time() - begun
            for name in exchanger.names:
                exchanger.wait(name)
    return spent / STEPS / len(gradients)


class _Hiding(nn.Module):  # type: ignore[misc]
    """Frozen layers before trained ones: the frozen layers' backward hides the exchanges."""

    def __init__(self) -> None:
        super().__init__()
        self.below = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(DEEP)))
        self.below.requires_grad_(False)
        self.above = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(DEEP // 2)))

    def forward(self, x: Any) -> Any:
        return self.above(self.below(x.requires_grad_()))


def _hidden_steps(comm: MPI.Intracomm, timeout: float) -> tuple[float, ...]:
    """Return the median seconds of a step without commsched, with attach, and with a timeline."""
    torch.manual_seed(0)
    models = [_Hiding() for _ in range(3)]
    inputs = torch.randn(ROWS, WIDTH)
    plan = _planned(_captured(models[0], inputs, comm, 3), comm)
    made = tempfile.mkdtemp(prefix="commsched-") if comm.rank == 0 else ""
    folder = Path(agree.gather_text(made, comm)[0])
    timeline = folder / "measured.json"
    syncs = [
        attach(models[1], plan, comm, timeout=timeout),
        attach(models[2], plan, comm, timeout=timeout, timeline=timeline),
    ]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in models]
    spent: list[list[float]] = [[], [], []]
    for turn in range(ROUNDS + 1):
        for which in (0, 1, 2) if turn % 2 else (2, 1, 0):
            for step in range(BLOCK):
                comm.Barrier()
                begun = time.perf_counter()
                optimizers[which].zero_grad()
                models[which](inputs).square().mean().backward()
                optimizers[which].step()
                if turn and step:
                    spent[which].append(time.perf_counter() - begun)
    for sync in syncs:
        sync.close()
    comm.Barrier()
    if comm.rank == 0:
        timeline.unlink(missing_ok=True)
        folder.rmdir()
    return tuple(agree.largest(float(np.median(some)), comm) for some in spent)


def _captured(model: Any, inputs: Any, comm: MPI.Intracomm, steps: int, graph: bool = False) -> Net:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def loss(some: Any) -> Any:
        return model(some).square().mean()

    return capture(model, loss, [inputs], optimizer, comm, steps=steps, graph=graph)


def _planned(net: Net, comm: MPI.Intracomm) -> Plan:
    """Return an equal plan of dense buckets on all ranks."""
    machine = replace(machine_file.load("localhost"), node_of_rank=(0,) * comm.size, overrides={})
    return make_plan(Request(net=net, machine=machine), "ddp-25mb")
