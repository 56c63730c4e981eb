"""`commsched show`: describe a net, machine, plan or timeline."""

import argparse
import json
from pathlib import Path
from typing import Any

from commsched import files, shipped
from commsched.cli import reasons
from commsched.cli.options import Flag, Option, command
from commsched.cli.plan_facts import facts, headline, summary
from commsched.errors import CommschedError
from commsched.machine import file as machine_file
from commsched.machine.fabric import shape
from commsched.machine.library import library_of
from commsched.machine.model import Link, Machine, Nic
from commsched.machine.ports import network, rate
from commsched.machine.trust import doubts, errors_of, held_out_line
from commsched.net import file as net_file
from commsched.net.compute import measured_on
from commsched.net.graph import Net
from commsched.plan import file as plan_file
from commsched.plan.model import Plan
from commsched.program.read_plan import plan_from_data
from commsched.text_table import table
from commsched.timeline import file as timeline_file
from commsched.timeline import last_report, parts
from commsched.timeline.model import Timeline
from commsched.timeline.summary import lines as timeline_lines
from commsched.timeline.summary import summary as timeline_summary
from commsched.units import count, nbytes, seconds

EXAMPLE = """example:
  commsched show vgg16
  commsched show plan.json
  commsched show plan.json --diff other.json
  commsched show measured.json.last
"""
Thing = Net | Machine | Plan | Timeline | last_report.Operations
HELP = "describe a net, machine, plan or timeline, or what a broken job's ranks did last"
OPTIONS = (
    Option("thing", "THING", "shipped net or machine, or a file; - is stdin"),
    Option("--diff", "OTHER", "show how another plan differs"),
    Flag("--json", "print the description as JSON"),
)


@command(HELP, OPTIONS, EXAMPLE)
def show(args: argparse.Namespace) -> None:
    """Describe one object, or print how two plans differ."""
    thing = load(args.thing)
    if args.diff is None:
        print(json.dumps(as_data(thing), indent=1) if args.json else words(thing))
        return
    other = load(args.diff)
    if not (isinstance(thing, Plan) and isinstance(other, Plan)):
        wrong = args.diff if isinstance(thing, Plan) else args.thing
        raise CommschedError(f"{wrong}: not a plan; --diff shows how one plan differs from another")
    changed = differences(thing, other)
    print(json.dumps(changed, indent=1) if args.json else _diff_words(thing, other, changed))


def load(name: str) -> Thing:
    """Read a shipped net or machine by its name, or a file of any of our formats."""
    if name in shipped.names("nets"):
        return net_file.load(name)
    if name in shipped.names("machines"):
        return machine_file.load(name)
    if last_report.base(name) is not None:
        return last_report.read(name)
    path, there = Path(name), name == files.STDIN or Path(name).exists()
    if not there and not name.endswith(".json"):
        known = ", ".join([*shipped.names("nets"), *shipped.names("machines")])
        raise CommschedError(f"{name}: neither a file nor a shipped net or machine; known: {known}")
    if not there or timeline_file.is_ours(path) or parts.base(path):
        return timeline_file.read(path)  # a run that broke off may have left only the parts
    text = files.read_text(path)
    data = files.parse(text, name)
    kind = data.get("format", "") if isinstance(data, dict) else ""
    readers: dict[str, Any] = {
        net_file.FORMAT: net_file.from_data,
        machine_file.FORMAT: machine_file.from_file_data,
        plan_file.FORMAT: plan_from_data,
    }
    if isinstance(kind, str) and kind in readers:
        found: Thing = readers[kind](data, name)
        return found
    if isinstance(data, dict) and "traceEvents" in data:
        stdin = name == files.STDIN  # it can be read once
        return timeline_file.from_text(text, name) if stdin else timeline_file.read(path)
    raise CommschedError(
        f"{name}: key 'format' is {kind!r}; allowed: {', '.join(readers)}, or a timeline"
    )


def as_data(thing: Thing) -> Any:
    """Return a thing as JSON data."""
    if isinstance(thing, Net):
        return net_file.to_data(thing)
    if isinstance(thing, Machine):
        return machine_file.file_data(thing)
    if isinstance(thing, last_report.Operations):
        return last_report.as_data(thing)
    return summary(thing) if isinstance(thing, Plan) else timeline_summary(thing)


def words(thing: Thing) -> str:
    """Describe a thing in words."""
    if isinstance(thing, Net):
        return _net(thing)
    if isinstance(thing, Machine):
        return _machine(thing)
    if isinstance(thing, Plan):
        shown = table(reasons.HEADER, reasons.rows(thing), reasons.RIGHT)
        return "\n".join([*facts(thing), shown, *reasons.notes(thing)])
    if isinstance(thing, last_report.Operations):
        return last_report.words(thing)
    head = f"{thing.kind} timeline of plan {thing.plan_hash[:12]} on {count(thing.ranks, 'rank')}"
    return "\n".join([head, *timeline_lines(timeline_summary(thing))])


def _net(net: Net) -> str:
    rows = []
    for layer in net.layers:
        density = min((t.sparsity.density for t in layer.tensors), default=1.0)
        rows.append(
            (
                layer.name,
                str(len(layer.tensors)),
                nbytes(sum(t.nbytes for t in layer.tensors)),
                f"{density:.4g}",
                _work(layer.forward, layer.forward_flops),
                _work(layer.backward, layer.backward_flops),
            )
        )
    kinds = " and ".join(sorted({t.dtype for t in net.tensors.values()}))
    size = f"{nbytes(net.nbytes)} of {kinds}"
    head = f"{net.name}: {len(net.layers)} layers, {len(net.tensors)} tensors, {size}"
    header = ("layer", "tensors", "gradient", "density", "forward", "backward")
    # The facts stand last, where a terminal still shows them below hundreds of layers.
    return "\n".join([table(header, rows, {1, 3}), head, f"source: {net.source}", *_measured(net)])


def _measured(net: Net) -> list[str]:
    on = net.measured
    if on is None:
        return []
    others = [f"; also for {other.device}: {other.source}" for other in on.throughputs]
    return [f"seconds {measured_on(on)}; {on.source}{''.join(others)}"]


def _work(measured: float | None, flops: float) -> str:
    return f"{flops / 1e9:.4g} Gflop" if measured is None else seconds(measured)


def _machine(machine: Machine) -> str:
    lines = [
        f"{machine.name}: {count(machine.nodes, 'node')}, {count(machine.size, 'rank')};"
        f" source: {machine.source}",
        *(_levels(machine) if machine.levels else _two_levels(machine)),
    ]
    lines += network(machine)
    lines.append(_library(machine))
    device = machine.device
    lines.append(
        f"device {device.name}: {nbytes(device.memory)}, {nbytes(device.bandwidth)}/s,"
        f" {device.flops / 1e12:.4g} Tflop/s at {device.efficiency:.0%}; {device.source}"
    )
    return "\n".join([*lines, *_calibration(machine)])


def _two_levels(machine: Machine) -> list[str]:
    links = [_link("inside a node", machine.inside), _link("between nodes", machine.between)]
    return [*links, *_ports("node", machine.nic)]


def _levels(machine: Machine) -> list[str]:
    """Describe the levels inside out, each with its links and the ports of its children."""
    lines, child = [], "rank"
    for level in machine.levels:
        shape = f" in a torus of {' x '.join(map(str, level.torus))}" if level.torus else ""
        rails = f" on {level.rails} rails" if level.rails > 1 else ""
        lines.append(
            _link(f"{level.name} of {count(level.children, child)}{shape}{rails}", level.link)
        )
        lines += _ports(child, level.nic)
        if level.oversubscription:
            source = f"; {level.source}" if level.source else ""
            lines.append(
                f"ports of a {child} carry 1/{level.oversubscription:g} of what it can send{source}"
            )
        child = level.name
    return lines


def _ports(child: str, nic: Nic | None) -> list[str]:
    if nic is None:
        return []
    each = rate(1 / nic.per_byte) if nic.per_byte else "bytes are free"
    return [f"{count(nic.per_node, 'port')} per {child}, {each} each; {nic.source}"]


def _library(machine: Machine) -> str:
    """Name the library whose algorithms `native` and other systems' planners use."""
    why = "" if machine.library else ", as the machine file names none"
    seconds_known = "; its all-reduce was measured" if machine.native else ""
    return f"library {library_of(machine).title}{why}{seconds_known}"


def _calibration(machine: Machine) -> list[str]:
    """Tell where a machine was calibrated, and the errors of its held-out cells."""
    lines = []
    if machine.fabric is not None:
        fabric = machine.fabric
        hosts = ", ".join(fabric.hosts[:4]) + (", ..." if len(fabric.hosts) > 4 else "")
        lines.append(
            f"calibrated on {hosts} as {shape(fabric.ranks)}, {count(fabric.cores, 'core')} usable,"
            f" {fabric.processor}; {fabric.mpi} over {fabric.transport}"
        )
    errors = errors_of(machine)
    if errors:
        lines.append(held_out_line(errors))
    return [*lines, *(f"warning: {sentence}" for sentence in doubts(errors))]


def _link(where: str, link: Link) -> str:
    speed = rate(1 / link.per_byte) if link.per_byte else "bytes are free"
    if link.points:
        size, last = link.points[-1]
        speed = f"{seconds(last)} for {nbytes(size)}, measured at {len(link.points)} sizes"
    cost = f"latency {seconds(link.latency)}, overhead {seconds(link.overhead)}"
    return f"{where}: {cost}, {speed}; {link.source}"


def differences(a: Plan, b: Plan) -> list[dict[str, str]]:
    """Return the tensors whose bucket, method, ranks or steps differ between two plans."""
    here, there = _launches(a), _launches(b)
    return [
        {"tensor": name, "here": "; ".join(ours) or "-", "there": "; ".join(theirs) or "-"}
        for name in dict.fromkeys([*here, *there])
        if sorted(ours := here.get(name, [])) != sorted(theirs := there.get(name, []))
    ]


def _launches(plan: Plan) -> dict[str, list[str]]:
    """Describe the launches of each tensor; name the elements if a launch has only a part."""
    found: dict[str, list[str]] = {}
    for launch in plan.launches:
        text = f"{launch.name} by {reasons.method(launch)}"
        for tensor, start, stop in launch.pieces:
            whole = stop - start == plan.net.tensors[tensor].numel
            part = "" if whole else f", elements {start} to {stop - 1}"
            found.setdefault(tensor, []).append(text + part)
    return found


def _diff_words(a: Plan, b: Plan, changed: list[dict[str, str]]) -> str:
    head = [headline(a), headline(b), f"{len(changed)} tensors travel differently"]
    iterations = reasons.compared(a, b)
    if iterations:
        head.insert(2, iterations)
    if not changed:
        return "\n".join(head)
    rows = [(c["tensor"], c["here"], c["there"]) for c in changed]
    return "\n".join([*head, table(("tensor", "here", "there"), rows)])
