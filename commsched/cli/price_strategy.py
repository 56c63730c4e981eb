"""Print the table of `commsched price --strategy`: state and exchanges for each setting."""

import argparse
import json
from collections.abc import Iterator
from itertools import product

from commsched.cli.options import pairs
from commsched.machine.model import Machine
from commsched.plan.model import Param
from commsched.planner.price_strategy import StrategyPrice, price_strategy
from commsched.text_table import table
from commsched.units import count

HEADER = ("parameters", "memory per rank", "exchange", "every", "time", "hidden", "exposed")
UNITS = ("", "GB", "", "steps", "ms", "ms", "ms")

Found = tuple[dict[str, Param], StrategyPrice]


def show(args: argparse.Namespace, machine: Machine, where: str) -> None:
    """Print state and exchanges of one tensor for every combination of parameters."""
    given = pairs(args.param, "--param")
    found: list[Found] = []
    for values in product(*(words.split(",") for words in given.values())):
        params: dict[str, Param] = dict(zip(given, values, strict=True))
        question = (args.numel, args.density, machine, args.strategy, params, args.compute)
        found.append((params, price_strategy(*question)))
    if args.json:
        print(json.dumps({"strategy": args.strategy, "settings": [*map(_data, found)]}, indent=1))
        return
    print(f"{count(args.numel, 'element')}, strategy {args.strategy}, {where}")
    print(table(HEADER, [UNITS, *(row for each in found for row in _rows(each))], (1, 3, 4, 5, 6)))


def _rows(found: Found) -> Iterator[tuple[str, ...]]:
    """Yield a line for every exchange."""
    params, price = found
    first = (
        " ".join(f"{key}={value}" for key, value in params.items()),
        f"{price.state / 1e9:.4g}",
    )
    for part in price.sums:
        times = (part.seconds, part.hidden, part.exposed)
        yield (*first, part.purpose, str(part.every), *(f"{time * 1e3:.4g}" for time in times))
        first = ("", "")


def _data(found: Found) -> dict[str, object]:
    params, price = found
    return {
        "parameters": params,
        "state_bytes": price.state,
        "exchanges": [
            {
                "exchange": part.purpose,
                "every": part.every,
                "seconds": part.seconds,
                "hidden_seconds": part.hidden,
                "exposed_seconds": part.exposed,
            }
            for part in price.sums
        ],
    }
