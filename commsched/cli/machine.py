"""The machine of a command: --machine, --set, --nodes and --lanes."""

import argparse
from typing import TYPE_CHECKING

from commsched.cli.options import ListOption, Option

if TYPE_CHECKING:
    from commsched.machine.model import Machine

SET = ListOption(
    "--set",
    "KEY=VALUE",
    "another value for a key of the machine file, such as nic='25 Gbit/s', latency='9 us', gpu=a100"
    " or device.tflops=312",
)
MACHINE = Option("--machine", "M", "shipped machine, or machine file", required=True)
NODES = Option("--nodes", "N", "number of nodes, instead of the machine file's", int)
LANES = Option("--lanes", "N", "ranks per node, instead of the machine file's", int)
OPTIONS = (MACHINE, SET, NODES, LANES)


def load(args: argparse.Namespace) -> "Machine":
    """Read the machine that the options describe."""
    from commsched.machine import file
    from commsched.machine.change import changed
    from commsched.machine.model import resized

    machine = changed(file.load(args.machine), args.set)
    if args.nodes is None and args.lanes is None:
        return machine
    return resized(machine, args.nodes, args.lanes)
