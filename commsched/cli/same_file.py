"""No command writes a result over a file that it reads, or over another result."""

import argparse
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from commsched.errors import CommschedError

OUTPUTS = {"output": "-o", "log": "--log", "figure": "--figure"}  # where results go
NO_INPUT = ("line", *OUTPUTS)  # the words as they were typed, and results


def check_output(parsed: argparse.Namespace, in_place: Collection[str] = ()) -> None:
    """Refuse an output that is a file among the inputs, or another output, under whatever name.

    in_place: names of options whose file the command may change.
    """
    before: dict[str, str | Path] = {}
    for name, flag in OUTPUTS.items():
        path = getattr(parsed, name, None)
        if not isinstance(path, str | Path) or (os.path.exists(path) and not os.path.isfile(path)):
            continue
        for other in _paths(parsed, {*NO_INPUT, *in_place}):
            if os.path.isfile(path) and _same(path, other):
                raise CommschedError(f"{path}: is read by this command; give {flag} another file")
        for first, other in before.items():
            if _same(path, other):
                raise CommschedError(f"{path}: is written by {first}; give {flag} another file")
        before[flag] = path


def _same(one: str | Path, other: str | Path) -> bool:
    """Tell whether two paths are of the same file, which may not exist yet."""
    if os.path.isfile(one) and os.path.isfile(other):
        return os.path.samefile(one, other)
    return os.path.realpath(one) == os.path.realpath(other)


def _paths(parsed: argparse.Namespace, but: Collection[str]) -> Iterator[str | Path]:
    """Yield all values that may be paths, also those of NAME=PATH."""
    for name, value in vars(parsed).items():
        for one in value if isinstance(value, list | tuple) else [value]:
            if name not in but and isinstance(one, str | Path) and "\0" not in str(one):
                yield one
                yield str(one).partition("=")[2]
