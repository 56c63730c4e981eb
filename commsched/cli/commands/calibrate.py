"""`mpiexec -n P commsched calibrate`: measure this machine with the ranks that will run."""

import argparse
from pathlib import Path

from commsched.cli.options import DEVICE, TIMEOUT, Commands, Option, add_command
from commsched.cli.quantities import SECONDS
from commsched.cli.ranks import begin

EXAMPLE = """example:
  mpiexec -n 4 commsched calibrate -o machine.json
  commsched plan resnet50 --machine machine.json -o plan.json
"""


OPTIONS = (
    Option("-o --output", "FILE", "machine file to write", Path, required=True),
    Option("--seconds", "TIME", "duration of the measurement", SECONDS, 20.0),
    DEVICE,
    TIMEOUT,
)


def add(commands: Commands) -> None:
    """Declare the command."""
    text = "measure links, all-reduce and codecs into a machine file, under mpiexec"
    add_command(commands, "calibrate", calibrate, text, OPTIONS, EXAMPLE, ranks=True)


def calibrate(args: argparse.Namespace) -> None:
    """Measure, and write the file on rank 0."""
    begin(args)
    from commsched.calibrate.session import calibrate_file

    calibrate_file(args.output, args.seconds, args.timeout, args.device)
