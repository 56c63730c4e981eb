"""`mpiexec -n P python -m commsched.lab.peers.digits ...`: a PyTorch CNN trains by a plan.

Initial tensors, batches and plan are those of `commsched train --net cnn:CHANNELS`; layers,
gradients and the optimizer are PyTorch's, and `commsched.torch.attach` averages the gradients.
This job takes the options of that command and writes its trainings to the file of `--sweep`.
"""

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import msgspec
import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional

from commsched.errors import CommschedError
from commsched.plan.model import Plan
from commsched.program.read_plan import read_plan
from commsched.run.job import agree
from commsched.run.session import errors_end_the_job
from commsched.timeline.model import Span
from commsched.torch.attach import attach
from commsched.train import trials
from commsched.train.optimizers import MOMENTUM
from commsched.train.registry import DATA, NETS
from commsched.train.sample_order import batch_of, part_of
from commsched.train.samples import Data, Samples
from commsched.train.schedules import Rates
from commsched.train.schedules import read as read_schedule
from commsched.train.training import finite_or_none
from commsched.train.trials import HeldOutScore, OneTraining, Trainings

SIDE = 8  # pixels
PIECE = 3  # pixels of a patch's side
STRIDES = (1, 2, 2)


class ColumnLinear(nn.Module):  # type: ignore[misc]
    """A bias and a matrix whose columns are outputs, as in our layers."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))


class Digits(nn.Module):  # type: ignore[misc]
    """Three convolutions and a softmax: (m, 64) pixels -> (m, 10) scores."""

    def __init__(self, width: int) -> None:
        super().__init__()
        channels = (1, width, 2 * width, 4 * width)
        for i, (before, after) in enumerate(pairwise(channels)):
            self.add_module(f"convolution{i}", ColumnLinear(PIECE * PIECE * before, after))
        self.output = ColumnLinear((SIDE // 4) ** 2 * 4 * width, 10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        x = pixels.view(-1, 1, SIDE, SIDE)
        for i, stride in enumerate(STRIDES):
            layer = self.get_submodule(f"convolution{i}")
            filters = layer.weight.view(PIECE, PIECE, x.shape[1], -1).permute(3, 2, 0, 1)
            x = functional.relu(functional.conv2d(x, filters, layer.bias, stride, PIECE // 2))
        flat = x.permute(0, 2, 3, 1).flatten(1)
        return flat @ self.output.weight + self.output.bias


def learn(
    args: argparse.Namespace, plan: Plan, fold: int, seed: int, comm: MPI.Intracomm
) -> OneTraining:
    """Train once on all ranks; after a divergence all losses are None."""
    begun, net = time.process_time(), NETS[args.net]
    data = DATA[net.data](fold)
    data = data.validation() if args.validate else data
    model = Digits(int(net.name.partition(":")[2]))
    with torch.no_grad():
        for name, start in net.start(seed).items():
            model.get_parameter(name).copy_(torch.from_numpy(start))
    momentum = MOMENTUM if args.optimizer == "momentum" else 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=args.rate, momentum=momentum)
    rates = Rates(args.rate, read_schedule(args.schedule), args.steps)
    held_out, sent, diverged = list[HeldOutScore](), [0.0], False

    def count(span: Span) -> None:
        sent[0] += span.nbytes

    with attach(model, replace(plan, seed=seed), comm) as sync:
        sync.listen(count)
        for step in range(args.steps):
            if not diverged:
                optimizer.param_groups[0]["lr"] = rates.at(step)
                own = _own(args, data, seed, step, comm)
                loss = functional.cross_entropy(*_scores(model, own))
                diverged = comm.allreduce(not torch.isfinite(loss).item(), MPI.LOR)
            if not diverged:
                optimizer.zero_grad()
                loss.backward()
                sync.report(loss.item())
                optimizer.step()
            if (step + 1) % args.evaluate == 0 or step + 1 == args.steps:
                held_out.append(_score(model, data, step + 1, diverged, comm))
            if (step + 1) % args.evaluate == 0:
                rates.observe(held_out[-1].loss or inf)
    moved = comm.allreduce(sent[0]) / (args.steps * comm.size)
    seconds = round(comm.allreduce(time.process_time() - begun), 2)
    return OneTraining(
        fold=fold, seed=seed, held_out=tuple(held_out), sent_bytes=moved, seconds=seconds
    )


def _own(
    args: argparse.Namespace, data: Data, seed: int, step: int, comm: MPI.Intracomm
) -> Samples:
    """Return this rank's part of a batch."""
    batch = batch_of(seed, step, args.batch, len(data.train))
    return data.train.of(batch[part_of(len(batch), comm.rank, comm.size)])


def _scores(model: nn.Module, samples: Samples) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a model's scores for some samples, and the right classes."""
    return model(torch.from_numpy(samples.inputs)), torch.from_numpy(samples.targets)


def _score(
    model: nn.Module, data: Data, steps: int, diverged: bool, comm: MPI.Intracomm
) -> HeldOutScore:
    """Score the held-out samples; each rank scores its part with its own parameters."""
    count = len(data.held_out)
    own = data.held_out.of(np.arange(count)[part_of(count, comm.rank, comm.size)])
    with torch.no_grad():
        scores, targets = _scores(model, own)
        loss = float(functional.cross_entropy(scores, targets, reduction="sum"))
    right = int((scores.argmax(1) == targets).sum())
    whole, correct = comm.allreduce(loss), comm.allreduce(right)
    mean = None if diverged else finite_or_none(whole / count)
    return HeldOutScore(steps=steps, loss=mean, accuracy=correct / count)


def options() -> argparse.ArgumentParser:
    """Return a parser of those options of `commsched train` that this job uses."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for flag, kind in (
        *(("--net", str), ("--strategy", str), ("--optimizer", str), ("--schedule", str)),
        *(("--steps", int), ("--evaluate", int), ("--batch", int), ("--folds", int)),
        *(("--seeds", int), ("--rate", float), ("--plan", Path), ("--sweep", Path)),
    ):
        parser.add_argument(flag, type=kind, required=True)
    for flag in ("--validate", "--force-size"):
        parser.add_argument(flag, action="store_true")
    return parser


def made_with(args: argparse.Namespace) -> dict[str, str | int | float | bool]:
    """Return the settings of trainings, by the flags of `commsched train`."""
    flags = ("net", "batch", "evaluate", "steps", "optimizer", "rate")
    made: dict[str, str | int | float | bool] = {f"--{flag}": vars(args)[flag] for flag in flags}
    made |= {"--schedule": args.schedule} if args.schedule != "constant" else {}
    return made | ({"--validate": True} if args.validate else {})


def _known(path: Path, nothing: Trainings) -> Trainings:
    """Return the file's trainings, empty without a file; reject a file with other settings."""
    found = trials.read(path) if path.exists() else nothing
    if (found.plan, found.made) != (nothing.plan, nothing.made):
        raise CommschedError(f"{path}: holds other trainings; give another file")
    return found


def main(words: Sequence[str] | None = None) -> None:
    """Train with the folds and seeds that the file lacks; rank 0 writes it after each training."""
    args = options().parse_args(words)
    torch.set_num_threads(1)
    comm = MPI.COMM_WORLD
    with errors_end_the_job(comm):
        plan = agree.on_all_ranks(lambda: read_plan(args.plan), comm)
        nothing = Trainings(plan=plan.hash, made=made_with(args))
        known = agree.on_all_ranks(lambda: _known(args.sweep, nothing), comm)
        there = {trial.key for trial in known.trials}
        for fold in range(args.folds):
            for seed in range(args.seeds):
                if (fold, seed) in there:
                    continue
                found = learn(args, plan, fold, seed, comm)
                known = msgspec.structs.replace(known, trials=(*known.trials, found))
                if comm.rank == 0:
                    trials.write(args.sweep, known)


if __name__ == "__main__":
    main()
