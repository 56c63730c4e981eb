"""A small net whose training goes on without help when a rank is lost.

mpiexec -n 2 commsched capture examples/torch_elastic.py:build -o net.json
commsched plan net.json --machine localhost --lanes 2 -o plan.json
commsched elastic -n 2 --checkpoint kept -- python examples/torch_elastic.py plan.json
"""

import argparse
import hashlib
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks that share a processor

import torch
from mpi4py import MPI
from torch import nn

import commsched.torch

BATCH = 8
COMM = MPI.COMM_WORLD


def build():
    """What `commsched capture` measures: model, loss of a batch, optimizer, batches of a rank."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 4))
    inputs = torch.randn(512, 16)
    targets = (inputs @ torch.randn(16, 4)).argmax(dim=1)
    mine = slice(COMM.rank, None, COMM.size)
    batches = list(zip(inputs[mine].split(BATCH), targets[mine].split(BATCH), strict=True))
    torch.manual_seed(COMM.rank)  # each rank drops other values

    def loss(batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    return model, loss, torch.optim.Adam(model.parameters(), lr=1e-2), batches


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plan", help="plan file")
    parser.add_argument("--steps", type=int, default=1000, help="default: 1000")
    parser.add_argument("--folder", help="of checkpoints; default: that of commsched elastic")
    options = parser.parse_args()
    model, loss, optimizer, batches = build()
    sync = commsched.torch.attach(model, options.plan)
    checkpoints = commsched.torch.Checkpoints(model, optimizer, sync, folder=options.folder)
    first = checkpoints.resume()
    if COMM.rank == 0:
        print(f"goes on with step {first}", flush=True)
    for step in range(first, options.steps):
        optimizer.zero_grad()
        value = loss(batches[step % len(batches)])
        value.backward()  # every .grad is now the mean over all ranks
        optimizer.step()
        if step % 20 == 19:
            checkpoints.save(step + 1)
            if COMM.rank == 0:
                print(f"step {step:4}  loss {value.item():.4f}", flush=True)
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    if COMM.rank == 0:
        print(f"parameters {digest.hexdigest()[:12]}")
