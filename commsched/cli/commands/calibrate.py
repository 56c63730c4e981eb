"""`mpiexec -n P commsched calibrate`: measure this machine with the ranks that will run."""

import argparse
from pathlib import Path

EXAMPLE = """example:
  mpiexec -n 4 commsched calibrate -o machine.json
  commsched plan resnet50 --machine machine.json -o plan.json
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    p = commands.add_parser(
        "calibrate",
        help="measure links, all-reduce and codecs into a machine file, under mpiexec",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="machine file")
    p.add_argument("--seconds", type=float, default=20.0, help="to spend; default: 20")
    p.add_argument("--device", default="cpu", metavar="D", help="cpu or cuda; default: cpu")
    p.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds without progress until the job is ended; default: 60",
    )
    p.set_defaults(run=calibrate)


def calibrate(args: argparse.Namespace) -> None:
    """Measure, and write the file on rank 0."""
    from commsched.run.job import launcher

    launcher.load()
    from commsched.calibrate.session import calibrate_file

    calibrate_file(args.output, args.seconds, args.timeout, args.device)
