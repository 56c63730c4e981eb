"""`commsched list`: the names that plans and commands know."""

import argparse
import json

from commsched.cli.options import Flag, Option, command
from commsched.errors import CommschedError
from commsched.nearest_name import nearest

EXAMPLE = """example:
  commsched list
  commsched list codecs
  commsched explain ring --ranks 4
"""
HELP = "list what there is: collectives, codecs, methods, strategies, planners, libraries"
OPTIONS = (
    Option(
        "kind",
        "KIND",
        "nets, machines, collectives, codecs, methods, strategies, planners or libraries;"
        " default: all",
        nargs="?",
    ),
    Flag("--json", "print the names, with a line each, as JSON"),
)


@command(HELP, OPTIONS, EXAMPLE)
def list_(args: argparse.Namespace) -> None:
    """Print the names of one kind, or of all."""
    from commsched.cli.plug_ins import FILES, KINDS, listed
    from commsched.text_table import table

    known = (*FILES, *KINDS)
    if args.kind is not None and args.kind not in known:
        near = nearest(args.kind, known)
        raise CommschedError(f"nothing is called {args.kind!r}; known: {', '.join(known)}{near}")
    found = {kind: listed(kind) for kind in ([args.kind] if args.kind else known)}
    if args.json:
        print(json.dumps(found, indent=1))
        return
    for kind, names in found.items():
        print(table([kind, ""], [[f"  {name}", line] for name, line in names.items()]))
