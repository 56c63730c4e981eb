"""DistributedDataParallel over gloo, with commsched's plan as its communication hook.

mpiexec -n 2 commsched capture examples/torch_gpt.py:build -o net.json
commsched plan net.json --machine localhost --lanes 2 -o plan.json
mpiexec -n 2 python examples/torch_ddp_hook.py plan.json
"""

import argparse
import os
import socket

os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks that share a processor

import torch
import torch.distributed
import torch_gpt
from mpi4py import MPI
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import commsched.torch


def start_gloo(comm):
    """Make DDP's process group of the ranks of MPI."""
    store = None
    if comm.rank == 0:  # a port that is free
        store = torch.distributed.TCPStore(socket.gethostname(), 0, is_master=True, **ALONE)
    host, port = comm.bcast((socket.gethostname(), store.port if store else None))
    if comm.rank:
        store = torch.distributed.TCPStore(host, port, is_master=False, **ALONE)
    torch.distributed.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size)


ALONE = {"wait_for_workers": False}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plan", help="plan file")
    parser.add_argument("--steps", type=int, default=100, help="default: 100")
    options = parser.parse_args()
    start_gloo(MPI.COMM_WORLD)
    model, _, _, batches = torch_gpt.build()
    ddp = DistributedDataParallel(model, bucket_cap_mb=1)
    ddp.register_comm_hook(*commsched.torch.hook(options.plan))
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-3)
    for step in range(options.steps):
        optimizer.zero_grad()
        batch = batches[step % len(batches)]
        value = functional.cross_entropy(ddp(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        value.backward()
        optimizer.step()
        if MPI.COMM_WORLD.rank == 0 and step % 10 == 0:
            print(f"step {step:4}  loss {value.item():.4f}", flush=True)
    torch.distributed.destroy_process_group()
