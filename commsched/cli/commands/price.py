"""`commsched price`: price each method, or one strategy, for one tensor."""

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from commsched.cli import machine as machine_options
from commsched.cli import size
from commsched.cli.options import Flag, ListOption, Option, command, output_file
from commsched.errors import CommschedError
from commsched.quantities import DENSITY, MILLISECONDS, elements
from commsched.units import count, nbytes

if TYPE_CHECKING:
    from commsched.cost.price import Price
    from commsched.exchange.method import Method
    from commsched.machine.model import Group, Machine

EXAMPLE = """example:
  commsched price 25000000 --machine p3dn.24xlarge --density 0.01 --nodes 4 --lossless
  commsched price 100MB --machine p3dn.24xlarge --top 3 --break-even fp16
  commsched price 25000000 --machine p3dn.24xlarge --method ring+dense,all-gather+topk:0.05
  commsched price 25000000 --machine p3dn.24xlarge --compute 40
  commsched price 25000000 --machine p3dn.24xlarge --strategy daso --param wait=1,2 --compute 40
  commsched price 2700000000 --machine summit --strategy samo --param pruned=0,0.25,0.9
  commsched price 25000000 --machine p3dn.24xlarge --lossless --figure crossover.png
"""
HEADER = ("method", "time", "encode", "exchange", "decode", "wire per rank", "messages", "lossless")
UNITS = ("", "ms", "ms", "ms", "ms", "MB", "per rank", "")
EXPOSED = ("exposed", "ms")  # one more column, with --compute
TOP = 10  # methods that are listed
HELP = "price each method, or one strategy, for one tensor"
OPTIONS = (
    Option("numel", "NUMEL", "float32 elements of the tensor, or bytes such as 100MB", elements),
    *machine_options.OPTIONS,
    Option("--density", "D", "share of non-zeros", DENSITY, 1.0),
    Flag("--lossless", "only lossless methods"),
    Option("--top", "N", f"list the N fastest methods; default: {TOP}, or those of --method", int),
    Flag("--all", "list all methods, and why other pairs of collective and codec are illegal"),
    Option(
        "--method",
        "NAME,...",
        "only these methods, which may have parameters, such as all-gather+topk:0.05",
        default="",
    ),
    Option(
        "--compute",
        "TIME",
        "compute that can hide the exchange; with --strategy: compute of one batch",
        MILLISECONDS,
        0.0,
    ),
    Option(
        "--break-even",
        "CODEC",
        "also find the rates of a node's port at which this codec is faster than the best lossless"
        " method",
    ),
    Option("--strategy", "NAME", "price the launches and the state of this strategy"),
    ListOption("--param", "KEY=VALUE,...", "parameter of the strategy; prices each of the values"),
    Option(
        "--figure",
        "FILE",
        "draw the fastest by density and bandwidth (.png, .svg, .pdf)",
        output_file,
    ),
    size.FORCE_SIZE,
    Flag("--json", "print seconds and bytes as JSON"),
)


@command(HELP, OPTIONS, EXAMPLE)
def price(args: argparse.Namespace) -> None:
    """Print a line per legal method, the least exposed first; or per exchange of --strategy."""
    _check(args)
    machine = machine_options.load(args)
    if args.figure is not None:
        _draw(args, machine)
    elif args.strategy is not None:
        from commsched.cli.price_strategy import show

        show(args, machine, f"density {args.density:g}, {_where(machine)}")
    else:
        _methods(args, machine)


def _check(args: argparse.Namespace) -> None:
    """Reject numbers out of range, and options that contradict each other."""
    if not 1 <= args.numel <= 2**40:
        raise CommschedError(f"NUMEL must be from 1 to 2^40 elements, got {args.numel}")
    if args.top is not None and args.top < 1:
        raise CommschedError(f"--top must be at least 1, got {args.top}")
    if args.param and args.strategy is None:
        raise CommschedError("--param needs --strategy, whose parameter it is")
    others = {"--method": args.method, "--all": args.all, "--figure": args.figure}
    others |= {"--top": args.top, "--break-even": args.break_even}
    if args.strategy is not None and (given := [name for name in others if others[name]]):
        raise CommschedError(f"--strategy prices what a planner chooses; leave out {given[0]}")
    numbers = {"--top": args.top, "--all": args.all, "--break-even": args.break_even}
    numbers |= {"--compute": args.compute}
    if args.figure is not None and (given := [name for name in numbers if numbers[name]]):
        raise CommschedError(f"--figure draws the fastest methods alone; leave out {given[0]}")


def _methods(args: argparse.Namespace, machine: "Machine") -> None:
    """Price the selected methods; at equal prices, methods that do not compress come first."""
    from commsched.cost.price import price as price_of
    from commsched.net.bucket import BucketSpec
    from commsched.progress import progress

    spec, group = BucketSpec.uniform(args.numel, args.density), machine.everyone
    hidden = args.compute
    asked = list(_asked(args, group))
    times = size.RATES if args.break_even else 1
    _check_size(args, size.pricing(machine, asked, times))
    with progress(len(asked), "method") as bar:
        priced = []
        for method in asked:
            priced.append((method, price_of(method, spec, machine, group)))
            bar.update()
    priced.sort(key=lambda f: (f[1].exposed(hidden), f[0].compresses, f[1].seconds, f[0].name))
    refused = list(_refused(group)) if args.all else []
    even = None
    if args.break_even is not None:
        from commsched.planner.crossover import outpaced

        even = outpaced(spec, machine, args.break_even)
    if args.json:
        priced = priced[: args.top]
        found = _data(args.numel, machine, priced, refused, hidden)
        print(json.dumps(found | ({"break_even": even.data()} if even else {}), indent=1))
        return
    from commsched.text_table import table

    print(f"{count(args.numel, 'element')}, density {args.density:g}, {_where(machine)}")
    everything = args.all or (args.method and args.top is None)
    hid = 0 if everything else len(priced) - (args.top or TOP)
    priced = priced if hid <= 0 else priced[: args.top or TOP]
    rows: list[tuple[str, ...]] = [HEADER, UNITS]
    rows += [_row(_name(m, machine, 4.0 * args.numel), m.lossless, found) for m, found in priced]
    if hidden:
        more = [*EXPOSED, *(f"{found.exposed(hidden) * 1e3:.4g}" for _, found in priced)]
        rows = [(*row[:2], new, *row[2:]) for row, new in zip(rows, more, strict=True)]
    print(table(rows[0], rows[1:], range(1, len(rows[0]) - 1)))
    if hid > 0:
        print(f"{count(hid, 'slower method')}: --all lists them")
    for name, reason in refused:
        print(f"no method {name}: {reason}")
    if even:
        print(even.sentence())


def _asked(args: argparse.Namespace, group: "Group") -> Iterator["Method"]:
    """Yield the methods of --method, or all legal methods."""
    from commsched.exchange.registry import find_method, legal_methods

    if not args.method:
        yield from legal_methods(group, lossless=args.lossless)
    for name in filter(None, args.method.split(",")):
        method = find_method(name)
        if args.lossless and not method.lossless:
            raise CommschedError(f"--method {name} loses something; leave it or --lossless out")
        yield method


def _draw(args: argparse.Namespace, machine: "Machine") -> None:
    """Draw the map of fastest methods, and print the share of each method."""
    from collections import Counter

    from commsched.planner.crossover import DENSITIES, RATES, port_rate, winners
    from commsched.plot.crossover import draw
    from commsched.plot.picture import check_suffix
    from commsched.progress import progress

    check_suffix(args.figure)  # before the work begins
    methods = list(_asked(args, machine.everyone))
    cells = len(DENSITIES) * len(RATES)
    _check_size(args, size.pricing(machine, methods, cells))
    with progress(cells, "cell") as bar:
        found = winners(args.numel, machine, methods, done=bar.update)
    kind = "all methods"
    if args.method:
        kind = ", ".join(m.name for m in methods) if len(methods) < 4 else f"{len(methods)} methods"
    elif args.lossless:
        kind = "lossless methods"
    elements = f"{args.numel:,} elements ({nbytes(4.0 * args.numel)})"
    title = f"fastest of {kind}\n{elements}, {_where(machine)}"
    draw(found, args.figure, title, port_rate(machine))
    wins = Counter({m.name: 0 for m in methods} if args.method else {})
    wins.update(name for row in found.names for name in row)
    if args.json:
        print(json.dumps(found.data(), indent=1))
        return
    for name, number in wins.most_common():
        print(f"{name:32} {number / cells:6.1%} of the map")
    print(f"drawn to {args.figure}")


def _check_size(args: argparse.Namespace, found: size.Size) -> None:
    size.check(args, "the prices", found)


def _where(machine: "Machine") -> str:
    return f"{count(machine.size, 'rank')} on {count(machine.nodes, 'node')} of {machine.name}"


def _name(method: "Method", machine: "Machine", nbytes: float) -> str:
    """Name a method, and what the machine's library takes for `native`."""
    name = _algorithm(method, machine, nbytes)
    return f"{method.name} ({name})" if name else method.name


def _algorithm(method: "Method", machine: "Machine", nbytes: float) -> str | None:
    """Name what the machine's library takes for `native`; None for other methods."""
    from commsched.machine.library import described

    return described(machine, machine.everyone, nbytes) if method.library else None


def _row(name: str, lossless: bool, found: "Price") -> tuple[str, ...]:
    times = (found.seconds, found.encode, found.exchange, found.decode)
    return (
        name,
        *(f"{seconds * 1e3:.4g}" for seconds in times),
        f"{found.sent / 1e6:.4g}",
        f"{found.messages:.4g}",
        "yes" if lossless else "no",
    )


def _refused(group: "Group") -> Iterator[tuple[str, str]]:
    """Yield illegal pairs and reasons; only the collective if it is illegal with every codec."""
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
    numel: int,
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
                "algorithm": _algorithm(method, machine, 4.0 * numel),
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
