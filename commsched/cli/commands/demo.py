"""`commsched demo`: plan, simulate, run on 4 ranks, compare, plot - the main job in one command."""

import argparse
import json
import sys
from pathlib import Path

from commsched import files
from commsched.cli.options import Flag, Option, command
from commsched.cli.plan_facts import headline
from commsched.cli.signals import end_well
from commsched.errors import CommschedError
from commsched.machine import file as machine_file
from commsched.net import file as net_file
from commsched.net.compute import origin
from commsched.net.load import on_machine
from commsched.plan import file as plan_file
from commsched.plan.model import Plan
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.quantities import POSITIVE, SECONDS
from commsched.run.job import start as job
from commsched.simulate.engine import simulate
from commsched.simulate.report import lines, report
from commsched.timeline import file as timeline_file
from commsched.timeline.compare import compare
from commsched.timeline.model import Timeline
from commsched.timeline.report import comparison_data, comparison_table

EXAMPLE = """example:
  commsched demo
  commsched demo --net bert-base --ranks 2 --steps 20 -o out
"""
# The net's bytes and times are scaled so that the run ends soon on two cores. Compute is stretched
# to last about as long as communication between CPUs, so that it can hide much of it.
NET, SCALE, STRETCH = "resnet50", 0.25, 6.0
CALIBRATE = 8.0  # s
RUN_LIMIT = 300.0  # s
FILES = ("machine.json", "plan.json", "predicted.json", "measured.json")
PICTURES = ("demo.html", "demo.png")
HELP = "plan, simulate, run on 4 ranks, compare and plot, in under a minute"
OPTIONS = (
    Option("-o --output", "FOLDER", "folder for all files", Path, Path("demo")),
    Option("--net", "NET", "shipped net, or net file", default=NET),
    Option("--ranks", "N", "number of ranks", int, 4),
    Option("--steps", "N", "number of steps", int, 15),
    Option("--scale", "F", "multiply bytes and seconds of the net", POSITIVE, SCALE),
    Option("--stretch", "F", "multiply compute seconds only", POSITIVE, STRETCH),
    Option("--seconds", "TIME", "duration of the measurement of this machine", SECONDS, CALIBRATE),
    Flag("--json", "print the comparison of prediction and run, and the files, as JSON"),
)


@command(HELP, OPTIONS, EXAMPLE)
def demo(args: argparse.Namespace) -> None:
    """Measure, plan, simulate, run, compare and plot, and print each stage."""
    end_well()
    folder: Path = args.output
    if args.ranks < 1 or args.steps < 3:
        raise CommschedError("the demo needs --ranks of at least 1 and --steps of at least 3")
    net = net_file.load(args.net)
    files.make_folder(folder)
    out = sys.stderr if args.json else sys.stdout

    def say(*sentences: str) -> None:
        print("\n".join(sentences), file=out, flush=True)

    say(f"1. measuring this machine with {args.ranks} ranks ({args.seconds:g} s)")
    machine = folder / "machine.json"
    words = ("calibrate", "-o", str(machine), "--seconds", str(args.seconds))
    job.commsched(args.ranks, words, RUN_LIMIT + args.seconds, quiet=args.json)
    say(f"2. planning {args.net}, bytes and times x {args.scale}, compute x {args.stretch}")
    on = machine_file.read(machine)
    net = on_machine(net.scaled(args.scale, args.stretch), on)
    plan = make_plan(Request(net=net, machine=on))
    plan_file.write(folder / "plan.json", plan)
    say(*(f"   {line}" for line in (headline(plan), *origin(net))), "3. simulating it")
    prediction = simulate(plan, args.steps)
    predicted = prediction.timeline()
    timeline_file.write(folder / "predicted.json", predicted)
    say(*(f"   {line}" for line in lines(report(prediction))))
    say(f"4. running the same plan with mpiexec -n {args.ranks}, {args.steps} steps")
    measured = run(plan, folder, args)
    found = compare(predicted, measured)
    say("5. predicted against measured", comparison_table(found, 12))
    from commsched.plot.draw import draw

    for picture in PICTURES:
        draw([predicted, measured], folder / picture)
    if args.json:
        made = [str(folder / name) for name in (*FILES, *PICTURES)]
        print(json.dumps({"files": made, "comparison": comparison_data(found)}, indent=1))
    say(
        f"{folder}/: {', '.join((*FILES, *PICTURES))}",
        f"open {folder / PICTURES[0]}: the step, predicted above measured, to zoom and search",
    )


def run(plan: Plan, folder: Path, args: argparse.Namespace) -> Timeline:
    """Execute the plan on real ranks and read its timeline."""
    measured = folder / "measured.json"
    words = ["run", str(folder / "plan.json"), "-o", str(measured), "--steps", str(args.steps)]
    job.commsched(args.ranks, words, RUN_LIMIT, quiet=args.json)
    return timeline_file.read(measured)
