"""A small DLRM, whose embeddings have sparse gradients: only the rows that were hit are exchanged.

mpiexec -n 2 commsched capture examples/torch_dlrm.py:build -o net.json
commsched plan net.json --machine localhost --lanes 2 -o plan.json
mpiexec -n 2 python examples/torch_dlrm.py plan.json
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks that share a processor

import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional

import commsched.torch

TABLES, ROWS, WIDTH, NUMBERS, BATCH = 4, 20_000, 16, 13, 128
COMM = MPI.COMM_WORLD
torch.sparse.check_sparse_tensor_invariants.disable()  # what Adagrad makes is right


class Dlrm(nn.Module):
    """Numbers by a small net, categories by embeddings; their products say if a user clicks."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=True) for _ in range(TABLES)
        )
        self.bottom = nn.Sequential(nn.Linear(NUMBERS, 64), nn.ReLU(), nn.Linear(64, WIDTH))
        inputs = WIDTH + (TABLES + 1) * TABLES // 2
        self.top = nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, numbers, categories):
        dense = self.bottom(numbers)
        rows = [table(some[:, None]) for table, some in zip(self.tables, categories.T, strict=True)]
        every = torch.stack([dense, *rows], dim=1)
        products = (every @ every.mT)[:, *torch.triu_indices(TABLES + 1, TABLES + 1, offset=1)]
        return self.top(torch.cat([dense, products], dim=1)).squeeze(1)


def draw(number):
    """Numbers, categories by Zipf's law, and clicks, which some of the numbers tell."""
    random = torch.Generator().manual_seed(number)
    numbers = torch.randn(BATCH, NUMBERS, generator=random)
    categories = (ROWS ** torch.rand(BATCH, TABLES, generator=random)).long() - 1
    popular = (categories < 20).sum(1) - TABLES / 3
    return numbers, categories, (numbers[:, :4].sum(1) + 2 * popular > 0).float()


def build():
    """What `commsched capture` measures: model, loss of a batch, optimizer, batches of a rank."""
    torch.manual_seed(0)
    model = Dlrm()
    batches = [draw(number) for number in range(COMM.rank, 50 * COMM.size, COMM.size)]

    def loss(batch):
        return functional.binary_cross_entropy_with_logits(model(*batch[:2]), batch[2])

    return model, loss, torch.optim.Adagrad(model.parameters(), lr=0.03), batches


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
        value.backward()  # every .grad is now the mean over all ranks, those of tables sparse
        optimizer.step()
        if COMM.rank == 0 and step % 10 == 0:
            print(f"step {step:4}  loss {value.item():.4f}", flush=True)
