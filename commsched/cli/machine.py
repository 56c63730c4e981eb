"""The options that describe a command's machine: --machine, --set, --nodes, --lanes, --ranks."""

import argparse
from typing import TYPE_CHECKING

from commsched.cli.options import ListOption, Option
from commsched.errors import CommschedError

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
RANKS = Option("--ranks", "N", "ranks of all nodes, instead of the machine file's", int)
OPTIONS = (MACHINE, SET, NODES, LANES, RANKS)


def load(args: argparse.Namespace) -> "Machine":
    """Read the machine that the options describe."""
    from commsched.machine import file
    from commsched.machine.change import changed
    from commsched.machine.model import of_ranks, resized

    machine = changed(file.load(args.machine), args.set)
    if args.nodes is not None or args.lanes is not None:
        machine = resized(machine, args.nodes, args.lanes)
    if args.ranks is None:
        return machine
    if args.nodes is not None:
        raise CommschedError("--nodes and --ranks say the same; leave one out")
    return of_ranks(machine, args.ranks)
