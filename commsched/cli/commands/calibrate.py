"""`mpiexec -n P commsched calibrate`: measure this machine with the ranks that will run."""

import argparse

from commsched.cli.options import DEVICE, TIMEOUT, Commands, Flag, Option, add_command, json_path
from commsched.cli.ranks import begin
from commsched.quantities import SECONDS

EXAMPLE = """example:
  mpiexec -n 4 commsched calibrate -o machine.json
  commsched plan resnet50 --machine machine.json -o plan.json
"""


OPTIONS = (
    Option("-o --output", "FILE", "machine file to write", json_path, required=True),
    Option("--seconds", "TIME", "duration of the measurement", SECONDS, 20.0),
    DEVICE,
    TIMEOUT,
    Flag("--json", "print where it was measured, its errors and its warnings as JSON"),
)


def add(commands: Commands) -> None:
    """Declare the command."""
    text = "measure links, all-reduce and codecs into a machine file, under mpiexec"
    add_command(commands, "calibrate", calibrate, text, OPTIONS, EXAMPLE, ranks=True)


def calibrate(args: argparse.Namespace) -> None:
    """Measure, and write the file on rank 0."""
    begin(args)
    from commsched.calibrate.session import calibrate_file

    calibrate_file(args.output, args.seconds, args.timeout, args.device, args.json)
