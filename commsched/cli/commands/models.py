"""`commsched models`: list shipped nets and machines, or write a transformer of any size."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commsched.cli.options import Flag, Option, command, json_file
from commsched.errors import CommschedError

if TYPE_CHECKING:
    from commsched.machine.model import Link, Machine
    from commsched.net.graph import Net

EXAMPLE = """example:
  commsched models
  commsched models --transformer layers=24,hidden=2048,heads=16,batch=4 -o my-gpt.json
"""
NET = ("net", "layers", "tensors", "parameters (M)", "gradient (MB)", "fwd + bwd (ms)", "density")
MACHINE = (
    *("machine", "nodes x ranks", "inside", "between", "per node", "ports", "per rank", "device"),
)
LEGEND = """
modelled: seconds follow from operations and the machine's device; density: of the gradients
inside, between: latency and rate of a link of two ranks of a node, or of two nodes
per node: rate of all its ports; per rank: of each of its ranks if all send
'commsched show NAME' tells more"""

SIZES = {  # of a transformer: default, or None if it must be given
    "layers": None,
    "hidden": None,
    "heads": None,
    "sequence": 2048,
    "vocabulary": 50257,
    "batch": 1,
}
MAX_LAYERS = 10_000  # more would be a file of many megabytes
HELP = "list the shipped nets and machines"
OPTIONS = (
    Flag("--json", "print the list, with sources, or what was written, as JSON"),
    Option(
        "--transformer",
        "layers=N,hidden=N,heads=N[,sequence=N][,vocabulary=N][,batch=N]",
        "write a GPT-style net of this size instead of printing the list",
    ),
    Option("-o --output", "FILE", "net file that --transformer writes", json_file),
)


@command(HELP, OPTIONS, EXAMPLE)
def models(args: argparse.Namespace) -> None:
    """Print one line for each shipped net and machine; or write one transformer."""
    if (args.transformer is None) != (args.output is None):
        raise CommschedError("--transformer and -o belong together: the one needs the other")
    if args.transformer is not None:
        write_transformer(args.transformer, args.output, args.json)
    else:
        show(args.json)


def write_transformer(text: str, path: Path, as_json: bool) -> None:
    """Write the net that `text`, such as `layers=2,hidden=64,heads=4`, describes."""
    import commsched.net.file
    from commsched.net.generate.transformer import gpt

    sizes = _sizes(text)
    name = path.name.removesuffix(".json")
    net = gpt(name, **sizes)
    commsched.net.file.write(path, net)
    if as_json:
        told = {"net": str(path), "layers": len(net.layers), "parameters": net.numel}
        print(json.dumps(told, indent=1))
        return
    print(f"{net.name}: {len(net.layers)} layers, {net.numel / 1e6:.1f} M parameters")
    print(f"written to {path}")


def _sizes(text: str) -> dict[str, int]:
    given: dict[str, int] = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        if key not in SIZES or key in given:
            known = ", ".join(SIZES)
            raise CommschedError(f"--transformer: {key!r} must be one of {known}, each once")
        if not (value.isascii() and value.isdecimal() and 0 < len(value) < 12 and int(value)):
            raise CommschedError(
                f"--transformer: {key} must be a whole number from 1 to 10^11 - 1, got {value!r}"
            )
        given[key] = int(value)
    missing = [key for key, default in SIZES.items() if default is None and key not in given]
    if missing:
        raise CommschedError(f"--transformer: {missing[0]} is missing, as in {missing[0]}=24")
    if given["hidden"] % given["heads"]:
        raise CommschedError(
            f"--transformer: hidden={given['hidden']} must be a multiple of heads={given['heads']}"
        )
    if given["layers"] > MAX_LAYERS:
        raise CommschedError(
            f"--transformer: layers must be at most {MAX_LAYERS}, got {given['layers']}"
        )
    return {key: default for key, default in SIZES.items() if default is not None} | given


def show(as_json: bool) -> None:
    """Print one line for each shipped net and machine."""
    import commsched.machine.file
    import commsched.net.file
    from commsched import shipped

    nets = [_net(commsched.net.file.load(name)) for name in shipped.names("nets")]
    names = shipped.names("machines")
    machines = [_machine(commsched.machine.file.load(name)) for name in names]
    if as_json:
        print(json.dumps({"nets": nets, "machines": machines}, indent=1))
    else:
        _print(nets, machines)


def _net(net: "Net") -> dict[str, Any]:
    """Return a net's row of the table; seconds are None unless all are measured."""
    tensors = net.tensors.values()
    seconds = [time for layer in net.layers for time in (layer.forward, layer.backward)]
    measured = [time for time in seconds if time is not None]
    nonzeros = sum(t.numel * float(t.sparsity.after(1)) for t in tensors)
    return {
        "name": net.name,
        "layers": len(net.layers),
        "tensors": len(tensors),
        "parameters": net.numel,
        "gradient_bytes": net.nbytes,
        "seconds": sum(measured) if len(measured) == len(seconds) else None,
        "batch": net.batch,
        "density": nonzeros / net.numel if net.numel else 1.0,
        "source": net.source,
    }


def _machine(machine: "Machine") -> dict[str, Any]:
    """Return a machine's row of the table; rates in B/s, None if bytes cost no time."""
    from commsched.machine.ports import network_data

    members = machine.everyone.members
    counts = sorted({len(ranks) for ranks in members})
    return {
        "name": machine.name,
        "nodes": len(members),
        "ranks_per_node": counts,
        "ranks": machine.size,
        "inside": _link(machine.inside),
        "between": _link(machine.between),
        "nics_per_node": machine.nic.per_node if machine.nic else None,
        "network": network_data(machine),
        "device": machine.device.name,
        "source": machine.source,
    }


def _link(link: "Link") -> dict[str, float | None]:
    from commsched.units import significant

    rate = significant(1 / link.per_byte) if link.per_byte else None
    return {"latency_seconds": significant(link.latency), "bytes_per_second": rate}


def _print(nets: list[dict[str, Any]], machines: list[dict[str, Any]]) -> None:
    from commsched.text_table import table

    print(table(NET, [_net_row(net) for net in nets], numbers=range(1, len(NET))))
    print()
    print(table(MACHINE, [_machine_row(machine) for machine in machines]))
    print()
    print(table(("machine", "source"), [(each["name"], each["source"]) for each in machines]))
    print(LEGEND)


def _net_row(net: dict[str, Any]) -> tuple[str, ...]:
    return (
        net["name"],
        str(net["layers"]),
        str(net["tensors"]),
        f"{net['parameters'] / 1e6:.1f}",
        f"{net['gradient_bytes'] / 1e6:.1f}",
        "modelled" if net["seconds"] is None else f"{net['seconds'] * 1e3:.1f}",
        f"{net['density']:.3g}",
    )


def _machine_row(machine: dict[str, Any]) -> tuple[str, ...]:
    from commsched.units import bits

    ports, network = machine["nics_per_node"], machine["network"]
    rates = ("-", "-") if network is None else [bits(rate / 8) for rate in network.values()]
    counts = " or ".join(map(str, machine["ranks_per_node"]))
    return (
        machine["name"],
        f"{machine['nodes']} x {counts}",
        _link_text(machine["inside"]),
        _link_text(machine["between"], network=True),
        rates[0],
        "own" if ports is None else str(ports),
        rates[1],
        machine["device"],
    )


def _link_text(link: dict[str, float | None], network: bool = False) -> str:
    from commsched import units

    latency, rate = link["latency_seconds"], link["bytes_per_second"]
    assert latency is not None
    if not rate:
        return f"{units.seconds(latency)}, no cost per byte"
    sold = f" ({units.bits(rate)})" if network else ""
    return f"{units.seconds(latency)}, {units.nbytes(rate)}/s{sold}"
