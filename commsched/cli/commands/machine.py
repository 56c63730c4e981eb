"""`commsched machine`: describe a machine of your own in a line, or list the known devices."""

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from commsched.cli import machine
from commsched.cli.machine import SET
from commsched.cli.options import (
    COMMANDS,
    Commands,
    Flag,
    ListOption,
    Option,
    add_actions,
    add_command,
    json_file,
)
from commsched.quantities import MICROSECONDS, PORT
from commsched.units import nbytes

if TYPE_CHECKING:
    from commsched.interchange.fit_links import FitTask
    from commsched.machine.model import Link, Machine

EXAMPLE = """example:
  commsched machine new --nodes 4 --gpus 8 --gpu a100 --net "25 Gbit/s" -o lab.json
  commsched machine new --nodes 2 --gpus 4 --gpu h100 --net "400 Gbit/s" --ports 4 -o lab.json
  commsched machine fit all_reduce_perf.txt --machine lab.json -o lab.json
  commsched machine fit apart.txt --inside on_one_node.txt --machine lab.json -o lab.json
  commsched machine fit node=a.txt rack=b.txt fabric=c.txt --machine hall.json -o hall.json
  commsched machine stalls measured.json --machine lab.json -o lab.json
  commsched machine devices
"""
NEW = (
    Option("--nodes", "N", "number of nodes", int, required=True),
    Option("--gpus", "N", "devices of a node, each with one rank", int, required=True),
    Option("--gpu", "NAME", "device, such as v100, a100 or h100-pcie", required=True),
    Option("--net", "RATE", "rate of a network port", PORT, required=True),
    Option("--ports", "N", "network ports of a node, shared by its devices", int, 1),
    Option(
        "--latency",
        "TIME",
        "network latency L + 2 o of a small message; default: 30 us, assumed for TCP",
        MICROSECONDS,
    ),
    Option("--inside", "RATE", "link of two devices in a node; default: as sold", PORT),
    Option("--name", None, "name of the machine; default: that of the file"),
    SET,
    Option("-o --output", "FILE", "machine file to write", json_file, required=True),
)
STALLS = (
    Option("timeline", "TIMELINE", "measured timeline of as many ranks, with 100 steps or more"),
    *machine.OPTIONS,
    Option("-o --output", "FILE", "machine file to write", json_file, required=True),
)
FIT = (
    Option(
        "logs",
        "LOG",
        "output of nccl-tests, rccl-tests or OSU's tests; LEVEL=LOG: of one unit of a level",
        nargs="*",
    ),
    ListOption("--inside", "LOG", "output of OSU's tests between two ranks of one node"),
    *machine.OPTIONS,
    Option("-o --output", "FILE", "machine file to write", json_file, required=True),
    Flag("--json", "print the fit as JSON"),
)
HEADER = ("device", "memory", "bandwidth", "peak", "inside", "slot", "source")


def add(commands: Commands) -> None:
    """Declare the command and its actions."""
    text = "describe a machine of your own in a line; list the known devices"
    actions = add_actions(commands, "machine", text, EXAMPLE)
    add_command(actions, "new", new, "write a machine file", NEW)
    told = "fit the links of a machine to sums and messages measured by other programs"
    add_command(actions, "fit", fit, told, FIT)
    told = "take the stalls of compute from a measured timeline"
    add_command(actions, "stalls", stalls, told, STALLS)
    listing = (Flag("--json", "print the devices as JSON"),)
    add_command(actions, "devices", devices, "list the devices that --gpu knows", listing)


COMMANDS["machine"] = add


def new(args: argparse.Namespace) -> None:
    """Write a machine file, and say what each node and rank gets of the network."""
    from commsched.machine import file
    from commsched.machine.change import changed
    from commsched.machine.ports import network

    made = changed(_made(args), args.set)
    file.write(args.output, made)
    inside = _inside(made)
    print(f"{made.name}: {made.nodes} x {args.gpus} {made.device.name}{inside}")
    for line in network(made):
        print(line)
    print(f"written to {args.output}")


def fit(args: argparse.Namespace) -> None:
    """Write a machine file with fitted links, and say what was fitted, and how well."""
    from commsched import records
    from commsched.errors import CommschedError
    from commsched.interchange.fit_links import fitted, task
    from commsched.interchange.micro_benchmarks import read
    from commsched.machine import file
    from commsched.machine.relink import PLACES
    from commsched.machine.trust import errors_of, held_out_line
    from commsched.units import bits, seconds, significant

    on = machine.load(args)
    wanted = [*map(_place_of_log, args.logs), *(("inside", path) for path in args.inside)]
    if not wanted:
        raise CommschedError("give the output of a test, such as all_reduce_perf.txt")
    tasks = [task(on, series, place) for place, path in wanted for series in read(path)]
    found, errors = fitted(on, tasks)
    file.write(args.output, found)
    if args.json:
        told: dict[str, object] = {
            place: records.to_data(getattr(found, place)) for place in PLACES
        }
        levels = {level.name: records.to_data(level.link) for level in found.levels}
        by_place = {place: [significant(x) for x in some] for place, some in errors.items()}
        every = errors_of(found)
        told |= {"levels": levels, "held_out_errors": every, "held_out_errors_of": by_place}
        print(json.dumps(told, indent=1))
        return
    for each in tasks:
        print(_measured(each))
        if each.series.torn:
            print(f"warning: {each.series.path} ends in the middle; its complete lines are used")
    for (place, old), new in zip(_links(on).items(), _links(found).values(), strict=True):
        if new != old:
            print(
                f"{place}: latency L + 2 o {seconds(old.latency + 2 * old.overhead)} ->"
                f" {seconds(new.latency + 2 * new.overhead)}, {_rate(old, bits)} ->"
                f" {_rate(new, bits)}"
            )
    for place, some in errors.items() if len(errors) > 1 else ():
        print(f"{place}: {held_out_line(some)}")
    print(held_out_line(errors_of(found)))
    print(f"written to {args.output}")


def _place_of_log(word: str) -> tuple[str, str]:
    """Return level and file of LEVEL=LOG; the level is empty if the whole word names a file."""
    from pathlib import Path

    level, equals, path = word.partition("=")
    return (level, path) if equals and not Path(word).exists() else ("", word)


def _links(on: "Machine") -> dict[str, "Link"]:
    """Return the links of a machine: name of the place in the machine -> link."""
    levels = {f"level {level.name}": level.link for level in on.levels}
    return levels or {"inside nodes": on.inside, "between nodes": on.between}


def _measured(each: "FitTask") -> str:
    """Describe a measured series: its file, test, ranks and sizes."""
    series, first, last = each.series, each.points[0][0], each.points[-1][0]
    nodes = {each.on.node_of_rank[rank] for rank in each.group.ranks}
    return (
        f"{series.path}: {series.title} of {len(nodes)} x {each.group.size // len(nodes)} ranks,"
        f" {len(each.points)} sizes from {nbytes(first)} to {nbytes(last)}"
    )


def stalls(args: argparse.Namespace) -> None:
    """Write a machine file with the stalls of a measured timeline."""
    from dataclasses import replace

    from commsched.machine import file
    from commsched.timeline import file as timeline_file
    from commsched.timeline.stalls import stalls as found_in

    on = machine.load(args)
    found = found_in(timeline_file.read(args.timeline), on)
    file.write(args.output, replace(on, stalls=found))
    for law in found:
        share, most = law.points[0][0], law.points[-1][1]
        print(
            f"a {law.among} is stalled in {share:.2%} of the steps, {law.steps} in a row; compute"
            f" then takes {1 + law.points[0][1]:.3g} to {1 + most:.3g} times as long"
        )
    if not found:
        print("no stalls: no step's compute takes much longer than the median")
    print(f"written to {args.output}")


def _made(args: argparse.Namespace) -> "Machine":
    from commsched.machine.build import Order, build

    order = Order(
        name=args.name or args.output.stem,
        nodes=args.nodes,
        ranks=args.gpus,
        device=args.gpu,
        port=args.net,
        ports=args.ports,
        latency=args.latency,
        inside=args.inside,
    )
    return build(order)


def _inside(made: "Machine") -> str:
    if max(made.ranks_of_node) == 1:
        return ""
    return f", {_rate(made.inside, _bytes_rate)} between two of a node"


def _rate(link: "Link", write: Callable[[float], str]) -> str:
    """Format the rate of a link, whose bytes may cost nothing."""
    return write(1 / link.per_byte) if link.per_byte else "free bytes"


def _bytes_rate(value: float) -> str:
    return f"{nbytes(value)}/s"


def devices(args: argparse.Namespace) -> None:
    """List the known devices with their sources."""
    from commsched import records
    from commsched.machine.devices import accelerators
    from commsched.text_table import table

    known = accelerators()
    if args.json:
        print(json.dumps({name: records.to_data(one) for name, one in known.items()}, indent=1))
        return
    rows = [
        (
            name,
            nbytes(one.device.memory),
            _bytes_rate(one.device.bandwidth),
            f"{one.device.flops / 1e12:g} Tflop/s {one.device.precision}",
            _rate(one.inside, _bytes_rate),
            _bytes_rate(one.slot),
            one.device.source.partition(":")[0],
        )
        for name, one in known.items()
    ]
    print(table(HEADER, rows))
