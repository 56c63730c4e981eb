"""No command writes its result over a file that it reads."""

import argparse
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from commsched.errors import CommschedError

NO_INPUT = ("line", "output")  # the words as they were typed, and where the result goes


def check_output(parsed: argparse.Namespace, in_place: Collection[str] = ()) -> None:
    """Refuse an output that is a file among the inputs, under whatever name.

    in_place: names of options whose file the command may change.
    """
    output = getattr(parsed, "output", None)
    if not isinstance(output, str | Path) or not os.path.isfile(output):
        return
    for path in _paths(parsed, {*NO_INPUT, *in_place}):
        if os.path.isfile(path) and os.path.samefile(path, output):
            raise CommschedError(f"{output}: is read by this command; give -o another file")


def _paths(parsed: argparse.Namespace, but: Collection[str]) -> Iterator[str | Path]:
    """Yield all values that may be paths, also those of NAME=PATH."""
    for name, value in vars(parsed).items():
        for one in value if isinstance(value, list | tuple) else [value]:
            if name not in but and isinstance(one, str | Path) and "\0" not in str(one):
                yield one
                yield str(one).partition("=")[2]
