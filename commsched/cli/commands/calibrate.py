"""`mpiexec -n P commsched calibrate`: measure this machine with the ranks that will run."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from commsched.cli.machine import SET
from commsched.cli.options import (
    DEVICE,
    TIMEOUT,
    Flag,
    ListOption,
    Option,
    command,
    json_path,
)
from commsched.cli.ranks import begin
from commsched.errors import CommschedError
from commsched.files import check_writable
from commsched.quantities import SECONDS
from commsched.run.job.launcher import environment_rank

if TYPE_CHECKING:
    from commsched.calibrate.from_runs import Fitted, MeasuredRun
    from commsched.machine.model import Machine

EXAMPLE = """example:
  mpiexec -n 4 commsched calibrate -o machine.json
  commsched plan resnet50 --machine machine.json -o plan.json
  commsched calibrate --from measured.json --plan plan.json -o machine.json

With --from nothing is measured, and one process is enough: the numbers of --machine, or of the
machine in the first run's plan, are fitted to the exchange and coding times of these runs. A third
of the launches is held out of the fit.
"""
HELP = "measure links, all-reduce and codecs into a machine file, under mpiexec"
DURATION = Option("--seconds", "TIME", "duration of the measurement", SECONDS, 20.0)
MEASURING = (DURATION, DEVICE, TIMEOUT)  # which have no effect with --from
OPTIONS = (
    Option("-o --output", "FILE", "machine file to write", json_path, required=True),
    *MEASURING,
    ListOption("--from", "TIMELINE", "fit to this measured timeline instead"),
    ListOption("--plan", "PLAN", "plan of a timeline of --from"),
    Option("--machine", "M", "machine that --from corrects; default: that of the first run's plan"),
    SET,
    Flag("--json", "print where it was measured, its errors and its warnings as JSON"),
)


@command(HELP, OPTIONS, EXAMPLE, ranks=True)
def calibrate(args: argparse.Namespace) -> None:
    """Measure, or fit to runs, and write the file on rank 0."""
    if vars(args)["from"]:
        if not environment_rank():
            fit_to_runs(args)
        return
    for name in ("plan", "machine", "set"):
        if getattr(args, name):
            raise CommschedError(f"--{name} is for --from, which names the timelines to fit to")
    begin(args)
    from commsched.calibrate.session import calibrate_file

    calibrate_file(args.output, args.seconds, args.timeout, args.device, args.json)


def fit_to_runs(args: argparse.Namespace) -> None:
    """Fit a machine to measured timelines, write it, and say which numbers moved."""
    import json

    from commsched.calibrate.from_runs import fitted, matched
    from commsched.machine import file as machine_file
    from commsched.machine.change import changed
    from commsched.machine.trust import held_out_line
    from commsched.plan import file as plan_file
    from commsched.timeline import file as timeline_file

    for option in MEASURING:
        name = option.names.removeprefix("--")
        if getattr(args, name) != option.default:
            raise CommschedError(
                f"--{name} is for a measurement; --from fits to runs: leave it out"
            )
    check_writable(args.output)
    timelines = {name: timeline_file.read(name) for name in vars(args)["from"]}
    runs = matched(timelines, [plan_file.read(name) for name in args.plan])
    on = machine_file.load(args.machine) if args.machine else runs[0].plan.machine
    before = changed(on, args.set)
    found = fitted(before, runs)
    machine_file.write(args.output, found.machine)
    if args.json:
        steps = _steps(found, before, dict(zip(timelines, runs, strict=True)))
        print(json.dumps(_data(found, args.output) | {"steps": steps}, indent=1))
        return
    for name, factor in found.moved.items():
        print(f"{name} x {factor:.3g}")
    for name, run in zip(timelines, runs, strict=True):
        was, now = (1e3 * run.predicted_step(on) for on in (before, found.machine))
        print(f"{name}: {1e3 * run.step:.4g} ms measured, {was:.4g} -> {now:.4g} ms predicted")
    for what, some in (("before", found.before), ("now", found.machine.held_out)):
        if some:
            print(f"{what}: {held_out_line([each.error for each in some])}")
    for sentence in _warnings(found.machine):
        print(f"warning: {sentence}")
    print(f"written to {args.output}")


def _warnings(machine: "Machine") -> list[str]:
    from commsched.machine.trust import doubts, errors_of

    errors = errors_of(machine)
    if machine.size == 1:
        return ["1 rank exchanges nothing; the errors of exchanges on this machine are not known"]
    unknown = "no launch was held out, so that the errors of this machine are not known; add a run"
    return list(doubts(errors)) if errors else [f"{unknown} of a plan with two launches or more"]


def _steps(
    found: "Fitted", before: "Machine", runs: "dict[str, MeasuredRun]"
) -> dict[str, dict[str, float]]:
    return {
        name: {
            "measured_ms": 1e3 * run.step,
            "predicted_before_ms": 1e3 * run.predicted_step(before),
            "predicted_ms": 1e3 * run.predicted_step(found.machine),
        }
        for name, run in runs.items()
    }


def _data(found: "Fitted", output: Path) -> dict[str, object]:
    return {
        "machine": str(output),
        "ranks": found.machine.size,
        "source": found.machine.source,
        "factors": found.moved,
        "held_out_errors_before": [each.error for each in found.before],
        "held_out_errors": [each.error for each in found.machine.held_out],
        "warnings": _warnings(found.machine),
    }
