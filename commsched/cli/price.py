"""`commsched price`: what would each method cost for one tensor?"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commsched.errors import CommschedError
from commsched.units import count

if TYPE_CHECKING:
    from commsched.cost.price import Price
    from commsched.machine import Group, Machine
    from commsched.methods import Method

EXAMPLE = """example:
  commsched price 25000000 --machine p3dn.24xlarge --density 0.01 --nodes 4 --lossless
  commsched price 25000000 --machine p3dn.24xlarge --lossless --figure crossover.png
"""
HEADER = ("method", "time", "encode", "exchange", "decode", "wire per rank", "messages", "lossless")
UNITS = ("", "ms", "ms", "ms", "ms", "MB", "per rank", "")


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    p = commands.add_parser(
        "price",
        help="what would each method cost for one tensor?",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("numel", type=int, metavar="NUMEL", help="elements in the tensor, float32")
    p.add_argument("--machine", required=True, metavar="M", help="name of a shipped one, or a file")
    p.add_argument("--density", type=float, default=1.0, metavar="D", help="share of non-zeros")
    p.add_argument("--nodes", type=int, metavar="N", help="instead of the machine's")
    p.add_argument("--lanes", type=int, metavar="K", help="ranks per node, likewise")
    p.add_argument("--lossless", action="store_true", help="only methods that lose nothing")
    p.add_argument("--all", action="store_true", help="say why other pairs are no methods")
    p.add_argument(
        "--figure",
        type=Path,
        metavar="FILE",
        help="draw which method is the fastest over density and bandwidth, as .png or .svg",
    )
    p.add_argument("--json", action="store_true", help="print seconds and bytes as JSON")
    p.set_defaults(run=price)


def price(args: argparse.Namespace) -> None:
    """Print a line for each legal method, the fastest first."""
    from commsched.cost.price import price as price_of
    from commsched.methods import legal_methods
    from commsched.plan.bucket import BucketSpec

    if not 0 <= args.numel <= 2**40:
        raise CommschedError(f"NUMEL must be in [0, 2^40], got {args.numel}")
    if not 0 < args.density <= 1:
        raise CommschedError(f"--density must be in (0, 1], got {args.density}")
    machine = _machine(args)
    if args.figure is not None:
        _draw(args, machine)
        return
    spec, group = BucketSpec.uniform(args.numel, args.density), machine.everyone
    methods = legal_methods(group, lossless=args.lossless)
    priced = [(method, price_of(method, spec, machine, group)) for method in methods]
    priced.sort(key=lambda found: (found[1].seconds, found[0].name))
    refused = list(_refused(group)) if args.all else []
    if args.json:
        print(json.dumps(_data(machine, priced, refused), indent=1))
        return
    from commsched.cli.table import table

    print(f"{count(args.numel, 'element')}, density {args.density:g}, {_where(machine)}")
    print(table(HEADER, [UNITS, *(_row(*found) for found in priced)], range(1, 7)))
    for name, reason in refused:
        print(f"no method {name}: {reason}")


def _draw(args: argparse.Namespace, machine: "Machine") -> None:
    """Draw the map of winners and say how often each wins."""
    from collections import Counter

    from commsched.planner.crossover import winners
    from commsched.plot.crossover import draw, suffix_of

    suffix_of(args.figure)  # before the work begins
    found = winners(args.numel, machine, lossless=args.lossless)
    kind = "lossless methods" if args.lossless else "all methods"
    title = f"fastest of {kind}: {count(args.numel, 'element')}, {_where(machine)}"
    draw(found.densities, found.rates, found.names, args.figure, title)
    wins = Counter(name for row in found.names for name in row)
    if args.json:
        print(json.dumps(found._asdict(), indent=1))
        return
    cells = sum(wins.values())
    for name, number in wins.most_common():
        print(f"{name:32} {number / cells:6.1%} of the map")
    print(f"drawn to {args.figure}")


def _machine(args: argparse.Namespace) -> "Machine":
    from commsched.machine import file
    from commsched.machine.model import resized

    machine = file.load(args.machine)
    if args.nodes is None and args.lanes is None:
        return machine
    return resized(machine, args.nodes, args.lanes)


def _where(machine: "Machine") -> str:
    return f"{count(machine.size, 'rank')} on {count(machine.nodes, 'node')} of {machine.name}"


def _row(method: "Method", found: "Price") -> tuple[str, ...]:
    times = (found.seconds, found.encode, found.exchange, found.decode)
    return (
        method.name,
        *(f"{seconds * 1e3:.4g}" for seconds in times),
        f"{found.sent / 1e6:.4g}",
        f"{found.messages:.4g}",
        "yes" if method.lossless else "no",
    )


def _refused(group: "Group") -> Iterator[tuple[str, str]]:
    """Pairs that do not sum a bucket, and why; the collective alone where no codec would."""
    from commsched.codecs import CODECS
    from commsched.collectives import COLLECTIVES
    from commsched.methods import illegal
    from commsched.methods.direct import route

    for collective in COLLECTIVES:
        try:
            schedule = route(collective, group)
        except CommschedError as error:
            yield collective, str(error)
            continue
        reasons = {name: illegal(schedule, codec) for name, codec in CODECS.items()}
        if None not in reasons.values() and len(set(reasons.values())) == 1:
            yield collective, str(next(iter(reasons.values())))
            continue
        for name, reason in reasons.items():
            if reason is not None:
                yield f"{collective}+{name}", reason


def _data(
    machine: "Machine", priced: list[tuple["Method", "Price"]], refused: list[tuple[str, str]]
) -> dict[str, Any]:
    return {
        "machine": machine.name,
        "ranks": machine.size,
        "methods": [
            {
                "method": method.name,
                "seconds": found.seconds,
                "encode_seconds": found.encode,
                "exchange_seconds": found.exchange,
                "decode_seconds": found.decode,
                "bytes_per_rank": found.sent,
                "messages_per_rank": found.messages,
                "lossless": method.lossless,
            }
            for method, found in priced
        ],
        "refused": dict(refused),
    }
