"""Shared parts of the contenders' jobs: options, gloo beside MPI, and the file of rank 0."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
import torch.distributed as dist
from mpi4py import MPI

from commsched import files
from commsched.lab.peers.contenders import join_gloo
from commsched.lab.peers.models import MODELS, PeerTraining, training
from commsched.run.session import errors_end_the_job


def options(text: str, steps: int, which: str) -> argparse.ArgumentParser:
    """Return a parser of a job's options; `steps` is the default number, `which` describes it."""
    parser = argparse.ArgumentParser(description=text.partition("\n")[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--plan", type=Path, action="append", default=[])
    parser.add_argument("--steps", type=int, default=steps, help=which)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, required=True)
    return parser


@contextmanager
def joined(args: argparse.Namespace) -> Iterator[tuple[MPI.Intracomm, Callable[[], PeerTraining]]]:
    """Initialise gloo; yield the communicator and a function that makes equal trainings."""
    comm = MPI.COMM_WORLD
    with errors_end_the_job(comm):
        join_gloo(comm)
        yield comm, partial(training, args.model, comm.rank, comm.size, args.seed)
        comm.Barrier()
        dist.destroy_process_group()


def write(made: msgspec.Struct, args: argparse.Namespace, comm: MPI.Intracomm) -> None:
    """Write the measurements on rank 0."""
    if comm.rank == 0:
        files.write(args.output, msgspec.to_builtins(made))
