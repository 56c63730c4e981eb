"""`commsched price`: what would each method, or a strategy, cost for one tensor?"""

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commsched.errors import CommschedError
from commsched.units import count

if TYPE_CHECKING:
    from commsched.cost.price import Price
    from commsched.exchange.method import Method
    from commsched.machine.model import Group, Machine

EXAMPLE = """example:
  commsched price 25000000 --machine p3dn.24xlarge --density 0.01 --nodes 4 --lossless
  commsched price 25000000 --machine p3dn.24xlarge --method ring+dense,all-gather+topk:0.05
  commsched price 25000000 --machine p3dn.24xlarge --compute 40
  commsched price 25000000 --machine p3dn.24xlarge --strategy daso --param wait=1,2 --compute 40
  commsched price 2700000000 --machine summit --strategy samo --param pruned=0,0.25,0.9
  commsched price 25000000 --machine p3dn.24xlarge --lossless --figure crossover.png
"""
HEADER = ("method", "time", "encode", "exchange", "decode", "wire per rank", "messages", "lossless")
UNITS = ("", "ms", "ms", "ms", "ms", "MB", "per rank", "")
EXPOSED = ("exposed", "ms")  # one more column, with --compute


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    p = commands.add_parser(
        "price",
        help="what would each method, or a strategy, cost for one tensor?",
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
        "--method",
        default="",
        metavar="NAME,...",
        help="only these; also ones that are not listed, such as all-gather+topk:0.05",
    )
    p.add_argument(
        "--compute",
        type=float,
        default=0.0,
        metavar="MS",
        help="computation that hides an exchange: until the next bubble; with --strategy a batch's",
    )
    p.add_argument("--strategy", metavar="NAME", help="price this one's launches and its state")
    p.add_argument(
        "--param",
        action="append",
        default=[],
        metavar="KEY=VALUE,...",
        help="parameter of the strategy; of several values each is priced",
    )
    p.add_argument(
        "--figure",
        type=Path,
        metavar="FILE",
        help="draw which method is the fastest over density and bandwidth, as .png or .svg",
    )
    p.add_argument("--json", action="store_true", help="print seconds and bytes as JSON")
    p.set_defaults(run=price)


def price(args: argparse.Namespace) -> None:
    """Print a line for each legal method, the least exposed first; or for each of a strategy's."""
    _check(args)
    machine = _machine(args)
    if args.figure is not None:
        _draw(args, machine)
    elif args.strategy is not None:
        from commsched.cli.price_strategy import show

        show(args, machine, f"density {args.density:g}, {_where(machine)}")
    else:
        _methods(args, machine)


def _check(args: argparse.Namespace) -> None:
    """Refuse numbers that make no sense, and options that do nothing together."""
    if not 0 <= args.numel <= 2**40:
        raise CommschedError(f"NUMEL must be in [0, 2^40], got {args.numel}")
    if not 0 < args.density <= 1:
        raise CommschedError(f"--density must be in (0, 1], got {args.density}")
    if not 0 <= args.compute < math.inf:
        raise CommschedError(f"--compute must be finite and at least 0 ms, got {args.compute}")
    if args.param and args.strategy is None:
        raise CommschedError("--param needs --strategy, whose parameter it is")
    others = {"--method": args.method, "--all": args.all, "--figure": args.figure}
    if args.strategy is not None and (given := [name for name in others if others[name]]):
        raise CommschedError(f"--strategy prices what a planner chooses; leave out {given[0]}")


def _methods(args: argparse.Namespace, machine: "Machine") -> None:
    """Price every method that is asked for; what does not compress comes first where it is even."""
    from commsched.cost.price import price as price_of
    from commsched.net.bucket import BucketSpec

    spec, group = BucketSpec.uniform(args.numel, args.density), machine.everyone
    hidden = args.compute / 1e3
    priced = [(m, price_of(m, spec, machine, group)) for m in _asked(args, group)]
    priced.sort(key=lambda f: (f[1].exposed(hidden), f[0].compresses, f[1].seconds, f[0].name))
    refused = list(_refused(group)) if args.all else []
    if args.json:
        print(json.dumps(_data(machine, priced, refused, hidden), indent=1))
        return
    from commsched.text_table import table

    print(f"{count(args.numel, 'element')}, density {args.density:g}, {_where(machine)}")
    rows = [HEADER, UNITS, *(_row(*found) for found in priced)]
    if hidden:
        more = [*EXPOSED, *(f"{found.exposed(hidden) * 1e3:.4g}" for _, found in priced)]
        rows = [(*row[:2], new, *row[2:]) for row, new in zip(rows, more, strict=True)]
    print(table(rows[0], rows[1:], range(1, len(rows[0]) - 1)))
    for name, reason in refused:
        print(f"no method {name}: {reason}")


def _asked(args: argparse.Namespace, group: "Group") -> Iterator["Method"]:
    """The methods by name, or all that are legal."""
    from commsched.exchange.registry import find_method, legal_methods

    if not args.method:
        yield from legal_methods(group, lossless=args.lossless)
    for name in filter(None, args.method.split(",")):
        method = find_method(name)
        if args.lossless and not method.lossless:
            raise CommschedError(f"--method {name} loses something; leave it or --lossless out")
        yield method


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
    from commsched.coding.registry import CODECS
    from commsched.exchange.pair import illegal, route
    from commsched.schedule.registry import COLLECTIVES

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
    machine: "Machine",
    priced: list[tuple["Method", "Price"]],
    refused: list[tuple[str, str]],
    hidden: float,
) -> dict[str, Any]:
    return {
        "machine": machine.name,
        "ranks": machine.size,
        "methods": [
            {
                "method": method.name,
                "seconds": found.seconds,
                "exposed_seconds": found.exposed(hidden),
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
