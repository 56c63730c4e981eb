"""The names and files that a shell offers for the values of commands and options."""

import argparse
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from commsched import shipped
from commsched.cli.options import Reader
from commsched.cli.plug_ins import FILES, KINDS
from commsched.exchange.registry import METHODS, legal_methods
from commsched.interchange.export import EXPORTS
from commsched.interchange.registry import FORMATS
from commsched.lab.reproduce.paper import PAPERS
from commsched.machine import file
from commsched.train.registry import NETS

FOLDERS = ("DIR", "FOLDER")
LARGE = "p3.16xlarge"  # has two levels, so methods for flat and for nested groups run on it


class Words(NamedTuple):
    """The words that a shell offers at a place of a command line."""

    names: tuple[str, ...] = ()
    files: bool = False


def places() -> dict[str, Words]:
    """Return the words by "COMMAND PLACE", PLACE, or metavariable; the first that matches wins.

    A place is the longest name of an option, or the name of a positional argument.
    """
    shipped_names = {kind: shipped.names(kind) for kind in shipped.KINDS}
    nets, machines = _words(shipped_names["nets"], True), _words(shipped_names["machines"], True)
    named = [name for registry in KINDS.values() for name in registry]
    group = file.load(LARGE).everyone
    methods = _words([*(method.name for method in legal_methods(group)), *METHODS])
    trained, lossy = _words(NETS), _words([*KINDS["codecs"], *METHODS])
    return {
        "train --net": trained,
        "profile net": trained,
        "validate --net": Words(),
        "machine new --gpu": _words(shipped_names["devices"]),
        "explain name": _words(named),
        "check plug_in": _words([*KINDS["collectives"], *KINDS["codecs"]], True),
        "list kind": _words([*FILES, *KINDS]),
        "show thing": _words(nets.names + machines.names, True),
        "export --to": _words(EXPORTS),
        "import --format": _words(FORMATS),
        "reproduce paper": _words(PAPERS),
        "bench planner --net": nets,
        "--machine": machines,
        "--planner": _words(KINDS["planners"]),
        "--strategy": _words([*KINDS["strategies"], "auto"]),
        "--method": methods,
        "--break-even": lossy,
        "--allow": lossy,
        "--codec": _words(KINDS["codecs"]),
        "--device": _words(["cpu", "cuda"]),
        "--compute": Words(),
        "NET": nets,
        "FILE": Words(files=True),
        "LOG": Words(files=True),
        "OTHER": Words(files=True),
        "SCRIPT": Words(files=True),
        "TIMELINE": Words(files=True),
    }


def words(known: dict[str, Words], command: str, action: argparse.Action) -> Words:
    """Return what may stand for the value of a command's action; a quantity has no words."""
    if isinstance(action.type, Reader):
        return Words()
    place = max(action.option_strings, key=len) if action.option_strings else action.dest
    metavar = re.match("[A-Z]*", str(action.metavar or ""))
    assert metavar is not None
    for key in (f"{command} {place}", place, metavar[0]):
        if key in known:
            return known[key]
    return Words(files=action.type is Path)


def is_folder(action: argparse.Action) -> bool:
    """Tell whether the value of an action is a folder."""
    return action.metavar in FOLDERS


def _words(names: Iterable[str], files: bool = False) -> Words:
    return Words(tuple(dict.fromkeys(names)), files)
