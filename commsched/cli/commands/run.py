"""`mpiexec -n P commsched run`: execute a plan on real ranks."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commsched.machine.model import Machine
    from commsched.plan.model import Plan

PLANNING = 2.0  # s of search between two steps
WORTH = 0.01  # share of the iteration that another plan has to save

EXAMPLE = """example:
  mpiexec -n 4 commsched run plan.json -o measured.json --steps 20
  mpiexec -n 4 commsched run plan.json -o measured.json --verify
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    p = commands.add_parser(
        "run",
        help="execute a plan on real ranks, under mpiexec",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("plan", type=Path, help="plan file")
    p.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="timeline")
    p.add_argument("--steps", type=int, default=10, metavar="N", help="default: 10")
    p.add_argument("--verify", action="store_true", help="check every result against a dense sum")
    p.add_argument(
        "--replan",
        action="store_true",
        help="plan anew between two steps where exchanges take longer or shorter than predicted for"
        " several steps",
    )
    p.add_argument("--device", default="cpu", metavar="D", help="cpu or cuda; default: cpu")
    p.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds that an operation may wait before the job is ended; default: 60",
    )
    p.add_argument("--json", action="store_true", help="print the summary as JSON")
    p.set_defaults(run=run)


def replanned(plan: "Plan", machine: "Machine", stay: frozenset[str]) -> "Plan":
    """A plan for the machine as it is now; the same launches where no other are faster.

    Tensors that `stay`, and those of lossy methods, keep their methods; no other loses anything,
    so that the budget is not measured again.
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
    from commsched.run.job import launcher

    launcher.load()
    from commsched.run.session import RunOptions, run_file

    options = RunOptions(
        steps=args.steps,
        timeout=args.timeout,
        verify=args.verify,
        device=args.device,
        replan=replanned if args.replan else None,
    )
    timeline = run_file(args.plan, args.output, options, progress=not args.json)
    if timeline is None:
        return
    from commsched.run.summary import lines, summary

    found = summary(timeline)
    print(
        json.dumps(found, indent=1)
        if args.json
        else "\n".join([*lines(found), f"written to {args.output}"])
    )
