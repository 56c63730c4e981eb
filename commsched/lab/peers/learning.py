"""`mpiexec -n P python -m commsched.lab.peers.learning MODEL ...`: what contenders learn.

What a contender has learnt does not depend on the network: these jobs need no testbed. One bucket
size stands for all dense peers, which sum the same numbers.
"""

import argparse
import os
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import msgspec
import torch.distributed as dist
from mpi4py import MPI

from commsched import files
from commsched.lab.peers.contenders import Contender, contenders, join_gloo
from commsched.lab.peers.models import MODELS, training
from commsched.lab.peers.record import CAP, Learned
from commsched.run.session import errors_end_the_job


def _learnt(contender: Contender, steps: int) -> float:
    """Return the held-out loss after some steps."""
    for _ in range(steps):
        contender.step()
    contender.finish()
    return contender.held_out()


def main() -> None:
    """Train on all ranks; rank 0 writes the losses."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--plan", type=Path, action="append", default=[])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    with errors_end_the_job(comm):
        join_gloo(comm)
        make = partial(training, args.model, comm.rank, comm.size, args.seed)
        losses = {
            name: _learnt(contender, args.steps)
            for name, contender in contenders(make, args.plan, comm, caps=(CAP,))
        }
        if comm.rank == 0:
            made = Learned(model=args.model, seed=args.seed, steps=args.steps, losses=losses)
            files.write(args.output, msgspec.to_builtins(made))
        comm.Barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
