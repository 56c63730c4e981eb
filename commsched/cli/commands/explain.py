"""`commsched explain`: what a collective, codec, method, strategy, planner or library is."""

import argparse
import inspect
from typing import TYPE_CHECKING

from commsched import shipped
from commsched.cli.options import Option, command, output_file
from commsched.errors import CommschedError
from commsched.nearest_name import nearest

if TYPE_CHECKING:
    from commsched.schedule.rounds import Schedule

EXAMPLE = """example:
  commsched explain ring --ranks 4
  commsched explain ring --ranks 4 -o ring.svg
  commsched explain topk:0.01
  commsched explain zen+topk:0.05
  commsched explain daso
"""
DRAWN = 32  # ranks: more moves cannot be read
HELP = "tell what a collective, codec, method, strategy, planner or library is, and its source"
OPTIONS = (
    Option("name", "NAME", "a name of `commsched list`, or a method such as ring+fp16 or zen+dgc"),
    Option("--ranks", "N", "draw the rounds of a collective on N ranks of one node", int),
    Option("-o --output", "FILE", "picture of these rounds (.png, .svg, .pdf)", output_file),
)


@command(HELP, OPTIONS, EXAMPLE)
def explain(args: argparse.Namespace) -> None:
    """Print the docstring of a plug-in, and what the plug-in may be combined with."""
    from commsched.exchange import experts, sharded
    from commsched.exchange.registry import find_method
    from commsched.exchange.sparsified import Sparsified

    if args.ranks is not None and not 1 <= args.ranks <= DRAWN:
        raise CommschedError(f"--ranks must be from 1 to {DRAWN} to be drawn, got {args.ranks}")
    if args.output is not None and args.ranks is None:
        raise CommschedError("-o needs --ranks: the rounds of a collective are drawn")
    name, plus, codec = args.name.partition("+")
    method = find_method(args.name) if plus else None
    kinds = [] if plus else _kinds(name)
    rounds = None if args.ranks is None else _rounds(name, args.ranks)
    for kind in kinds:
        _explain(kind, name, rounds)
    if isinstance(method, Sparsified):
        print(f"method {method.name}\n\n{inspect.getdoc(Sparsified)}\n")
        _explain("methods", name, None)
    elif method is not None and name.startswith((sharded.PREFIX, experts.PREFIX)):
        print(f"method {method.name}\n\n{inspect.getdoc(type(method))}")
    elif method is not None:
        _explain("collectives", name, rounds)
    if method is not None:
        print()
        _explain("codecs", codec, None)
    if args.output is not None:
        from commsched.plot.schedule import draw

        assert rounds is not None
        draw(rounds, args.output)
        print(f"drawn to {args.output}")


def _kinds(name: str) -> list[str]:
    """Return the kinds of plug-in that have a name; raise an error if none has."""
    from commsched.cli.plug_ins import KINDS

    if kinds := [kind for kind, registry in KINDS.items() if name in registry]:
        return kinds
    if name in {*shipped.names("nets"), *shipped.names("machines")}:
        raise CommschedError(f"{name} is a shipped net or machine; see 'commsched show {name}'")
    family, parameters, _ = name.partition(":")
    for registry in KINDS.values():
        if parameters and family in registry:
            registry[name]  # says what is wrong with the parameters
    near = nearest(name, [each for registry in KINDS.values() for each in registry])
    raise CommschedError(f"nothing is called {name!r}; see 'commsched list'{near}")


def _rounds(name: str, ranks: int) -> "Schedule":
    """Return the schedule of a collective on ranks of one node."""
    from commsched.exchange.pair import route
    from commsched.machine.model import Group
    from commsched.schedule.registry import COLLECTIVES

    if name in COLLECTIVES:
        found = route(name, Group(ranks=tuple(range(ranks)), nodes=(0,) * ranks))
        if not found.library:
            return found
    raise CommschedError(f"{name} has no rounds to draw; collectives such as ring have")


def _explain(kind: str, name: str, rounds: "Schedule | None") -> None:
    from commsched.cli.plug_ins import KINDS, text_of
    from commsched.exchange.pair import ALONE, illegal, route
    from commsched.exchange.registry import sparse_sums
    from commsched.exchange.sparsified import stands_first
    from commsched.program.parameters import Range
    from commsched.schedule.text import dumps

    item = KINDS[kind][name]
    print(f"{KINDS[kind].kind} {name}\n")
    print(text_of(kind, name))
    if kind == "collectives":
        codecs = [n for n, c in KINDS["codecs"].items() if not illegal(route(name, ALONE), c)]
        print(f"\nMay be paired with the codecs: {', '.join(codecs) or 'none; part of methods'}")
        if rounds is not None:
            print("\nRounds, `0>1:2+` = rank 0 sends block 2 and rank 1 adds it:")
            print(dumps(rounds), end="")
    if kind == "codecs":
        able = [n for n in KINDS["collectives"] if not illegal(route(n, ALONE), item)]
        print(f"\n{'Lossless' if item.lossless else 'Lossy'}. Collectives: {', '.join(able)}")
        if stands_first(name):
            print(f"May stand before the sparse sums: {', '.join(sparse_sums())}")
    if kind == "strategies":
        print("\nParameters (--param NAME=VALUE), default and what is allowed:")
        for key, (default, allowed, *_) in item.parameters.items():
            words = str(allowed) if isinstance(allowed, Range) else ", ".join(map(str, allowed))
            print(f"  {key} = {default}  ({words})")
