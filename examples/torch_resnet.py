"""A small ResNet on drawn images, with BatchNorm: captured, planned, and trained with a plan.

mpiexec -n 2 commsched capture examples/torch_resnet.py:build -o net.json
commsched plan net.json --machine localhost --lanes 2 -o plan.json
mpiexec -n 2 python examples/torch_resnet.py plan.json
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks that share a processor

import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional

import commsched.torch

CLASSES, SIZE, BATCH = 4, 16, 8
COMM = MPI.COMM_WORLD


class Block(nn.Module):
    """Two convolutions added to their input (He et al., CVPR 2016)."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.one = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
        self.short = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x):
        inner = functional.relu(self.norms[0](self.one(x)))
        return functional.relu(self.norms[1](self.two(inner)) + self.short(x))


def resnet():
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES)),
    )


def draw(number):
    """Stripes whose width is the class, under noise: (BATCH, 3, SIZE, SIZE), (BATCH,)."""
    random = torch.Generator().manual_seed(number)
    labels = torch.randint(CLASSES, (BATCH,), generator=random)
    stripes = torch.sin(torch.arange(SIZE) * (0.5 + labels.view(-1, 1, 1, 1)))
    return stripes + 0.3 * torch.randn(BATCH, 3, SIZE, SIZE, generator=random), labels


def build():
    """What `commsched capture` measures: model, loss of a batch, optimizer, batches of a rank."""
    torch.manual_seed(0)
    model = resnet()
    batches = [draw(number) for number in range(COMM.rank, 50 * COMM.size, COMM.size)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, lambda some: functional.cross_entropy(model(some[0]), some[1]), optimizer, batches


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plan", help="plan file")
    parser.add_argument("--steps", type=int, default=50, help="default: 50")
    options = parser.parse_args()
    model, loss, optimizer, batches = build()
    commsched.torch.attach(model, options.plan)
    for step in range(options.steps):
        optimizer.zero_grad()
        value = loss(batches[step % len(batches)])
        value.backward()  # every .grad is now the mean over all ranks
        optimizer.step()
        if COMM.rank == 0 and step % 10 == 0:
            print(f"step {step:4}  loss {value.item():.4f}", flush=True)
