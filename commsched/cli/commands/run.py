"""`mpiexec -n P commsched run`: execute a plan on real ranks."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from commsched.cli import size
from commsched.cli.options import DEVICE, Commands, Flag, Option, add_command, json_path
from commsched.cli.quantities import SECONDS
from commsched.cli.ranks import begin

if TYPE_CHECKING:
    from commsched.machine.model import Machine
    from commsched.plan.model import Plan

PLANNING = 2.0  # s of search between two steps
WORTH = 0.01  # share of the iteration that a new plan must save

EXAMPLE = """example:
  mpiexec -n 4 commsched run plan.json -o measured.json --steps 20
  mpiexec -n 4 commsched run plan.json -o measured.json --verify
"""


OPTIONS = (
    Option("plan", None, "plan file", Path),
    Option("-o --output", "FILE", "timeline to write", json_path, required=True),
    Option("--steps", "N", "number of steps", int, 10),
    Flag("--verify", "check every result against a dense sum"),
    Flag("--replan", "plan again between two steps if exchange times differ from the prediction"),
    DEVICE,
    size.FORCE_SIZE,
    Option(
        "--timeout", "TIME", "end the job if an operation waits longer than this", SECONDS, 60.0
    ),
    Flag("--json", "print the summary as JSON"),
)


def add(commands: Commands) -> None:
    """Declare the command."""
    text = "execute a plan on real ranks, under mpiexec"
    add_command(commands, "run", run, text, OPTIONS, EXAMPLE, ranks=True)


def replanned(plan: "Plan", machine: "Machine", stay: frozenset[str]) -> "Plan":
    """Plan again for the machine as measured now; keep the launches if no others are faster.

    Tensors in `stay` and tensors with lossy methods keep their methods. All other methods are
    lossless, so the error budget need not be measured again.
    """
    from commsched.exchange.registry import find_method
    from commsched.planner.make_plan import make_plan
    from commsched.planner.request import Request
    from commsched.planner.search.timing import iteration

    kept = {
        piece.tensor: launch.method
        for launch in plan.launches
        for piece in launch.pieces
        if piece.tensor in stay or not find_method(launch.method).lossless
    }
    request = Request(
        net=plan.net,
        machine=machine,
        strategy=plan.strategy,
        params=plan.params,
        force=kept,
        mean=plan.mean,
        seed=plan.seed,
        time_limit=PLANNING,
    )
    made = replace(make_plan(request), max_error=plan.max_error)
    seconds = iteration(replace(plan, machine=machine))
    if iteration(made) < (1 - WORTH) * seconds:
        return made
    launches = tuple(replace(launch, reason=None) for launch in plan.launches)
    return replace(plan, machine=machine, launches=launches, iteration=seconds, bound=0.0)


def run(args: argparse.Namespace) -> None:
    """Run, and print the summary on rank 0."""
    begin(args)
    from commsched.run.session import RunOptions, run_file

    options = RunOptions(
        steps=args.steps,
        timeout=args.timeout,
        verify=args.verify,
        device=args.device,
        replan=replanned if args.replan else None,
        check=lambda plan: size.check(args, f"--steps {args.steps}", size.run(plan, args.steps)),
    )
    timeline = run_file(args.plan, args.output, options, progress=not args.json)
    if timeline is None:
        return
    from commsched.net.compute import compute_data, origin
    from commsched.program.read_plan import read_plan
    from commsched.timeline.summary import lines, summary

    net = read_plan(args.plan).net
    found = {**summary(timeline), "compute": compute_data(net)}
    print(
        json.dumps(found, indent=1)
        if args.json
        else "\n".join([*origin(net), *lines(found), f"written to {args.output}"])
    )
