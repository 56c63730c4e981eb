"""`mpiexec -n P commsched train`: train a real net under a strategy."""

import argparse
import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commsched.cli import elastic, size
from commsched.cli import method_schedule as schedule
from commsched.cli.machine import SET
from commsched.cli.options import (
    DEVICE,
    TIMEOUT,
    TRAINABLE,
    Flag,
    ListOption,
    Option,
    OptionGroup,
    command,
)
from commsched.cli.ranks import begin
from commsched.errors import CommschedError
from commsched.quantities import MEGABYTES, POSITIVE

if TYPE_CHECKING:
    from commsched.net.graph import Net
    from commsched.plan.model import Param, Plan
    from commsched.train.job import TrainRequest

EXAMPLE = """example:
  mpiexec -n 4 commsched train --net gpt --steps 300 --log gpt.jsonl --figure gpt.png
  mpiexec -n 4 commsched train --net words --method all-gather+topk:0.01 --checkpoint kept
  mpiexec -n 4 commsched train --net words --method all-gather+topk:0.01 --checkpoint kept --resume
  commsched train --net words --checkpoint kept --elastic 4    # goes on when a rank is lost
  mpiexec -n 4 commsched train --net mlp --strategy 1f1b --param stages=2 --param microbatches=4
  commsched profile words -o words.json && commsched plan words.json --machine m.json -o plan.json
  mpiexec -n 4 commsched train --net words --plan plan.json -o measured.json
"""

BUCKET = 0.5e6  # B of a bucket, with --method
# Options of a new plan, which contradict --plan.
PLANNING = (
    "machine",
    "set",
    "method",
    "force",
    "param",
    "first",
    "later",
    "refresh",
    "theta",
    "bucket",
)
SWEEP: tuple[Flag | Option, ...] = (
    Option("--sweep", "FILE", "with --plan: train with each fold and seed not yet in FILE", Path),
    Flag("--together", "run all ranks in this process, without mpiexec"),
    Option("--folds", "N", "number of folds", int, 5),
    Option("--seeds", "N", "number of seeds", int, 5),
)
ELASTIC: tuple[Flag | Option, ...] = (
    Option("--elastic", "P", "start P ranks; if one is lost, go on from the checkpoint", int),
    *elastic.OPTIONS,
)
HELP = "train a real net on real data, under mpiexec"
OPTIONS = (
    Option("--net", "NET", TRAINABLE, required=True),
    Option(
        "--strategy", "NAME", "strategy, such as daso, 1f1b or samo; default: the plan's, or sync"
    ),
    Option("--plan", "FILE", "plan for a net written by `commsched profile`", Path),
    Option("--machine", "M", "without --plan: machine to plan for; default: localhost"),
    SET,
    Option("--method", "NAME", "without --plan: method of all buckets; default: planned"),
    ListOption("--force", "TENSOR=METHOD", "without --plan: method of a tensor, in its own bucket"),
    *schedule.OPTIONS,
    ListOption("--param", "KEY=VALUE", "without --plan: parameter of the strategy, as stages=2"),
    Option(
        "--bucket", "SIZE", "with --method: bucket size, as float32; default: 0.5 MB", MEGABYTES
    ),
    OptionGroup(
        (
            Option("--steps", "N", "number of steps", int, 200),
            Option("--epochs", "N", "number of epochs, instead of --steps", POSITIVE),
        )
    ),
    Option("--batch", "N", "samples per step, of all ranks together", int, 64),
    Option("--optimizer", "NAME", "sgd, momentum or adam; default: the plan's"),
    Option("--rate", "R", "learning rate; default: sgd 0.1, momentum 0.02, adam 0.002", POSITIVE),
    Option(
        "--schedule",
        "FORM",
        "of the rate: constant, steps:FACTOR:STEP:..., cosine[:LEAST] or plateau:FACTOR:PATIENCE,"
        " in evaluations; warm-up:N, may stand first",
        default="constant",
    ),
    Option(
        "--theta", "L", "with --method of fft: theta^2 = L times the rate, in every step", POSITIVE
    ),
    Option("--precision", "P", "fp32 or fp16; default: fp32, with samo fp16"),
    Option("--seed", "N", "seed of parameters and batches; equal bits need --plan, too", int, 0),
    Option("--fold", "N", "fold of the data to hold out, 0 to 4", int, 0),
    Flag(
        "--validate",
        "hold out a fifth of the training samples, not the fold: to choose a rate",
    ),
    Option("--evaluate", "N", "steps between evaluations", int, 50),
    Option("--log", "FILE", "log to write, a line of JSON per step", Path),
    Option("--figure", "FILE", "with --log: draw its curves (.png, .svg, .pdf)", Path),
    Option("-o --output", "FILE", "timeline to write", Path),
    Option("--checkpoint", "DIR", "folder for checkpoints", Path),
    Option("--every", "N", "steps between checkpoints", int, 50),
    Flag("--resume", "resume from the checkpoint"),
    DEVICE,
    TIMEOUT,
    size.FORCE_SIZE,
    Flag("--json", "print the result as JSON"),
    OptionGroup(SWEEP, "many trainings of one plan"),
    OptionGroup(ELASTIC, "without mpiexec, under a supervisor"),
)


@command(HELP, OPTIONS, EXAMPLE, ranks=True)
def train(args: argparse.Namespace) -> int | None:
    """Train, and print the result on rank 0."""
    _check(args)
    if args.elastic is not None and not elastic.supervised("train --elastic"):
        command = (*elastic.COMMSCHED, *args.line)
        return elastic.run(args.elastic, args.checkpoint, command, args, ("--resume",))
    begin(args, own=("device",))
    args.strategy = args.strategy or _strategy_of(args)
    schedule.check(args, args.strategy)
    if args.sweep is not None:
        _sweep(args)
        return None
    from commsched.train.job import train_job

    found = train_job(_wanted(args), progress=not args.json)
    if found is None:
        return None
    if args.figure is not None:
        from commsched.plot.training import draw

        draw([args.log], args.figure)
    print(json.dumps(found, indent=1) if args.json else "\n".join(_lines(found)))
    return None


def _strategy_of(args: argparse.Namespace) -> str:
    """Return the strategy of the plan's file, or the checkpoint's; `sync` if there is none."""
    from commsched.program.read_plan import read_plan
    from commsched.run.job.store import PLAN

    plan: Path | None = args.plan
    if plan is None and args.resume and args.checkpoint is not None:
        kept: Path = args.checkpoint / PLAN
        plan = kept if kept.is_file() else None
    return "sync" if plan is None else read_plan(plan).strategy


def _sweep(args: argparse.Namespace) -> None:
    """Train many times, and print the means on rank 0."""
    from commsched.train.sweep import Sweep, sweep
    from commsched.train.trials import mean

    chosen = Sweep(
        path=args.sweep,
        folds=range(args.folds),
        seeds=range(args.seeds),
        together=args.together,
    )
    found = sweep(_wanted(args), chosen)
    if found is None:
        return
    asked = [t for t in found.trials if t.fold in chosen.folds and t.seed in chosen.seeds]
    ends = [trial.end for trial in asked]
    losses = [end.loss for end in ends if end.loss is not None]
    result: dict[str, Any] = {
        "trainings": len(ends),
        "without_a_loss": len(ends) - len(losses),
        "held_out_loss": mean(losses)._asdict() if losses else None,
        "held_out_accuracy": mean([end.accuracy for end in ends])._asdict(),
        "sent_mean_bytes": mean([t.sent_bytes for t in asked]).value,
    }
    print(json.dumps(result, indent=1) if args.json else "\n".join(_means(result)))


def _means(found: dict[str, Any]) -> list[str]:
    """Describe the means over many trainings."""
    from commsched.train.trials import Mean
    from commsched.units import nbytes

    loss, accuracy = (
        None if found[key] is None else Mean(**found[key])
        for key in ("held_out_loss", "held_out_accuracy")
    )
    return [
        f"{found['trainings']} trainings; means, and intervals of 95 %",
        f"held out: loss {loss or 'no number'}, right {accuracy}",
        f"{nbytes(found['sent_mean_bytes'])} sent per rank and step",
    ]


def _wanted(args: argparse.Namespace) -> "TrainRequest":
    """Return the training that the command line describes."""
    from commsched.train.job import TrainRequest
    from commsched.train.schedules import read
    from commsched.train.training import TrainOptions

    options = TrainOptions(
        steps=args.steps,
        evaluate=args.evaluate,
        every=args.every,
        timeout=args.timeout,
        timeline=args.output,
    )
    given = {f.name: getattr(args, f.name) for f in fields(TrainRequest) if f.name in args}
    made: dict[str, Any] = {
        "params": _params(args),
        "planning": _planning(args),
        "schedule": read(args.schedule),
        "options": options,
        "make": lambda net, ranks: _planned(args, net, ranks),
        "check": lambda plan, steps: _check_size(args, plan, steps),
        "fits": lambda net: size.check(args, f"--net {args.net}", size.profile(net)),
    }
    return TrainRequest(**{**given, **made})


def _planning(args: argparse.Namespace) -> "dict[str, Param]":
    """Return the options for a new plan: flag -> value, the values of a list joined."""
    found = {f"--{flag}": value for flag in PLANNING if (value := getattr(args, flag))}
    if args.bucket:
        found["--bucket"] = f"{args.bucket:.15g}B"
    return {flag: " ".join(v) if isinstance(v, list) else v for flag, v in found.items()}


def _check_size(args: argparse.Namespace, plan: "Plan", steps: int) -> None:
    """Refuse a training whose steps together take too long, or whose memory is too large."""
    what = f"--epochs {args.epochs:g}" if args.epochs is not None else f"--steps {args.steps}"
    what = what if steps else f"--net {args.net}"  # without steps only its memory counts
    size.check(args, what, size.training(plan, steps))


def _check(args: argparse.Namespace) -> None:
    """Reject options that contradict each other."""
    if args.plan is not None:
        for flag in PLANNING:
            if getattr(args, flag):
                raise CommschedError(f"--{flag} is for planning; --plan gives a plan: use one")
    if args.method and args.strategy in ("daso", "shadow", "zero1", "zero2", "zero3"):
        raise CommschedError(
            f"--method is for gradients that all ranks sum; strategy {args.strategy!r} plans what"
            " it exchanges"
        )
    if args.bucket is not None and not args.method:
        raise CommschedError("--bucket needs --method; without it the planner sizes the buckets")
    if args.sweep is not None:
        _check_sweep(args)
    for needed, *options in (SWEEP, ELASTIC):  # the options have no effect without `needed`
        for one in options:
            given = getattr(args, one.names.removeprefix("--")) != one.default
            if given and getattr(args, needed.names.removeprefix("--")) is None:
                raise CommschedError(f"{one.names} needs {needed.names}")
    if args.elastic is not None and args.checkpoint is None:
        raise CommschedError("--elastic needs --checkpoint, the folder to go on from")
    if args.elastic is not None and args.elastic < 1:
        raise CommschedError(f"--elastic must be at least 1, got {args.elastic}")
    if args.figure is not None and args.log is None:
        raise CommschedError("--figure needs --log, which holds the curves")
    if args.figure is not None and args.figure.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise CommschedError(f"--figure must end in .png, .svg or .pdf, got {args.figure}")
    if not 0 <= args.fold < 5:
        raise CommschedError(f"--fold must be from 0 to 4, got {args.fold}")
    if not 0 <= args.seed <= 2**62:
        raise CommschedError(f"--seed must be from 0 to 2^62, got {args.seed}")


def _check_sweep(args: argparse.Namespace) -> None:
    """Reject options of a single training."""
    if args.plan is None:
        raise CommschedError("--sweep needs --plan, the plan of all trainings")
    for flag in ("checkpoint", "log", "figure", "output", "resume", "elastic"):
        if getattr(args, flag) not in (None, False):
            raise CommschedError(f"--{flag} is for one training, --sweep for many; leave one out")
    for flag in ("seed", "fold"):
        if getattr(args, flag):
            raise CommschedError(f"--{flag} is for one training; --sweep counts {flag}s from 0 on")
    if args.epochs is not None:
        raise CommschedError("--epochs is for one training; give --steps with --sweep")
    if args.together and args.device != "cpu":
        raise CommschedError("--together trains on the cpu; leave --device out, or use mpiexec")
    if not (1 <= args.folds <= 5 and args.seeds >= 1):
        raise CommschedError(
            f"--folds must be from 1 to 5 and --seeds at least 1, got {args.folds} and {args.seeds}"
        )


def _planned(args: argparse.Namespace, net: "Net", ranks: int) -> "Plan":
    """Measure the net on this machine and plan it."""
    from commsched.cli.options import pairs
    from commsched.machine import file as machine_file
    from commsched.machine.change import changed
    from commsched.machine.model import resized
    from commsched.planner.fixed_method import given
    from commsched.planner.make_plan import make_plan
    from commsched.planner.request import Request, forced

    machine = changed(machine_file.load(args.machine or "localhost"), args.set)
    request = Request(
        net=net,
        machine=machine if args.machine else resized(machine, 1, ranks),
        strategy=args.strategy,
        params=_params(args),
        force=forced(pairs(args.force, "--force"), net),
        bucket=(args.bucket or BUCKET) if args.method else None,
    )
    later = {} if args.theta is None else _thetas(args)
    method = later.pop(0, args.method)
    made = given(request, method) if method else make_plan(request)
    return schedule.added(made, args, later)


def _thetas(args: argparse.Namespace) -> dict[int, str]:
    """Return the method by step for a theta that follows the rate."""
    from commsched.program.registry import STRATEGIES
    from commsched.train.optimizers import RATES, find_optimizer
    from commsched.train.schedules import read, tied

    if not args.method or args.epochs is not None or args.later:
        raise CommschedError("--theta needs --method and --steps, and neither --epochs nor --later")
    params = STRATEGIES[args.strategy].defaults | _params(args)
    optimizer = args.optimizer or str(params.get("optimizer", "adam"))
    find_optimizer(optimizer)
    rate = RATES[optimizer] if args.rate is None else args.rate
    found = tied(args.method, args.theta, rate, read(args.schedule), args.steps)
    if len(found) > 1 and (args.first or not STRATEGIES[args.strategy].changes):
        raise CommschedError(
            f"--theta changes the method with --schedule {args.schedule}, which is for strategy"
            " 'sync' without --first; nearest: --schedule constant"
        )
    return found


def _params(args: argparse.Namespace) -> "dict[str, Param]":
    """Return the strategy's parameters, with the optimiser if it is one of them."""
    from commsched.cli.options import pairs
    from commsched.program.registry import STRATEGIES

    found: dict[str, Param] = dict(pairs(args.param, "--param"))
    if args.optimizer and "optimizer" in STRATEGIES[args.strategy].defaults:
        found["optimizer"] = args.optimizer
    return found


def _lines(found: dict[str, Any]) -> list[str]:
    """Describe the result."""
    from commsched.timeline.summary import lines as measured
    from commsched.units import nbytes, seconds

    def shown(loss: float | None, accuracy: float | None) -> str:
        guessed = "" if accuracy is None else f", {accuracy:.1%} right"
        return ("no number" if loss is None else f"{loss:.4f}") + guessed

    ranks = "1 rank" if found["ranks"] == 1 else f"{found['ranks']} ranks"
    lines = [f"{found['net']}, {ranks}, {found['steps']} steps"]
    if found["step_seconds"] is not None:
        lines += [
            f"last batch: loss {shown(found['loss'], found['accuracy'])}",
            f"held out: loss {shown(found['held_out_loss'], found['held_out_accuracy'])}",
            f"{seconds(found['step_seconds'])} per step, {nbytes(found['sent_bytes_per_step'])}"
            " sent by rank 0",
        ]
    if found["skipped_steps"]:
        lines.append(f"{found['skipped_steps']} steps left out: 16-bit gradients overflowed")
    lines += measured(found["measured"]) if "measured" in found else []
    held = "all ranks hold the same" if found["alike"] else "each rank holds its own"
    return [*lines, f"{held} parameters: {found['parameters'][:12]}"]
