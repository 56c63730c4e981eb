"""A small GPT on Python's own manual: captured, planned, and trained with commsched's plan.

mpiexec -n 2 commsched calibrate -o machine.json
mpiexec -n 2 commsched capture examples/torch_gpt.py:build -o net.json
commsched plan net.json --machine machine.json -o plan.json
mpiexec -n 2 python examples/torch_gpt.py plan.json
"""

import argparse
import os
from pydoc_data.topics import topics

os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks that share a processor

import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional

import commsched.torch

WIDTH, LAYERS, CONTEXT, BATCH = 64, 2, 32, 8
COMM = MPI.COMM_WORLD


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        up, down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.mlp = nn.Sequential(up, nn.GELU(), down)

    def forward(self, x):
        qkv = self.qkv(self.norms[0](x)).unflatten(-1, (3, 4, WIDTH // 4)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, letters):
        return self.head(self.blocks(self.letters(letters) + self.places.weight))


def build():
    """What `commsched capture` measures: model, loss of a batch, optimizer, batches of a rank."""
    torch.manual_seed(0)
    model = Gpt()
    text = torch.tensor(list("".join(topics.values()).encode("ascii", "replace")))
    windows = text[: len(text) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
    batches = windows[COMM.rank :: COMM.size].split(BATCH)[:200]

    def loss(batch):
        return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    return model, loss, torch.optim.AdamW(model.parameters(), lr=3e-3), batches


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plan", help="plan file")
    parser.add_argument("--steps", type=int, default=100, help="default: 100")
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
