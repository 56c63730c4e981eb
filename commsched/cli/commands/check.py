"""`commsched check`: prove a collective or codec of your own, and price it."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from commsched.cli.machine import SET
from commsched.cli.options import Flag, Option, command
from commsched.errors import CommschedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commsched.lab.plug_in_laws.finding import Finding
    from commsched.machine.model import Machine

EXAMPLE = """example:
  commsched check torus.py
  commsched check torus.py --ranks 8,1024 --machine summit
  commsched check topk:0.01 --no-run

For a collective, the schedule is proved for many groups of ranks, its sums are compared with
NumPy's, its bytes with the predicted ones. For a codec: values, sizes, additions and feedback. If
mpiexec is installed, 4 ranks run a small plan. Exits with status 1 if a law does not hold.
"""
HELP = "prove a collective or codec of your own, price it, and run it on a few ranks"
OPTIONS = (
    Option("plug_in", "FILE|NAME", "Python file of a plug-in, or the name of one"),
    Option("--ranks", "P,...", "also prove and price at these numbers of ranks", default="8"),
    Option("--machine", "M", "machine to price on", default="p3.16xlarge"),
    SET,
    Flag("--no-run", "start no ranks"),
    Flag("--json", "print the findings as JSON"),
)


@command(HELP, OPTIONS, EXAMPLE)
def check(args: argparse.Namespace) -> int:
    """Print what is found, law by law; return 1 if a law does not hold."""
    from commsched.lab.plug_in_laws import prices
    from commsched.machine import file as machine_file
    from commsched.machine.change import changed

    on = changed(machine_file.load(args.machine), args.set)
    machines = prices.sized(on, _sizes(args.ranks))
    found: dict[str, list[Finding]] = {}
    for kind, name in _named(args.plug_in):
        title = f"{kind} {name}"
        found[title] = []
        if not args.json:
            print(title)
        for finding in _findings(kind, name, machines, not args.no_run):
            found[title].append(finding)
            if not args.json:
                print(f"  {finding}", flush=True)
    if args.json:
        told = {title: [each._asdict() for each in all] for title, all in found.items()}
        print(json.dumps(told, indent=1))
    return int(any(each.holds is False for all in found.values() for each in all))


def _findings(kind: str, name: str, machines: "list[Machine]", run: bool) -> "Iterator[Finding]":
    from commsched.coding.registry import CODECS
    from commsched.lab.plug_in_laws import codecs, collectives, on_real_ranks
    from commsched.progress import each

    if kind == "codec":
        laws, method = codecs.laws(name, machines), f"{codecs.way(CODECS[name])}+{name}"
    else:
        laws, method = collectives.laws(name, machines), f"{name}+dense"
    yield from each(laws, f"{kind} {name}")
    if run:
        yield from each((on_real_ranks.law(one) for one in [method]), f"{method} on ranks")


def _named(text: str) -> list[tuple[str, str]]:
    """Return kind and name of each plug-in that a file registers, or of the plug-in named."""
    from commsched import plug_ins
    from commsched.lab.plug_in_laws.skeleton import KINDS
    from commsched.nearest_name import nearest

    if text.endswith(".py"):
        for registry in KINDS.values():
            len(registry)  # registers all shipped plug-ins before the file registers its own
        plug_ins.use(text)
        plug_ins.load()
        plug_in = str(Path(text).resolve())
        found = [(kind, name) for kind, each in KINDS.items() for name in each.names_of(plug_in)]
        if not found:
            raise CommschedError(
                f"{text} registers no collective and no codec; see 'commsched new --help'"
            )
        return found
    found = [
        (kind, registry.canonical(text)) for kind, registry in KINDS.items() if text in registry
    ]
    if not found:
        near = nearest(text, [name for registry in KINDS.values() for name in registry])
        raise CommschedError(
            f"no collective or codec is named {text!r}, and it is no Python file{near}"
        )
    return found


def _sizes(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdecimal() and 0 < int(part) < 10**6 for part in parts):
        raise CommschedError(f"--ranks must be whole numbers such as 8,1024, got {text!r}")
    return [int(part) for part in parts]
