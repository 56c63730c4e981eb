"""No command writes its result over a file that it reads."""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from commsched.errors import CommschedError

NO_INPUT = ("line", "output")  # the words as they were typed, and where the result goes


def check_output(parsed: argparse.Namespace) -> None:
    """Refuse an output that is a file among the inputs, under whatever name."""
    output = getattr(parsed, "output", None)
    if not isinstance(output, str | Path) or not os.path.isfile(output):
        return
    for path in _paths(parsed):
        if os.path.isfile(path) and os.path.samefile(path, output):
            raise CommschedError(f"{output}: is read by this command; give -o another file")


def _paths(parsed: argparse.Namespace) -> Iterator[str | Path]:
    """Yield all values that may be paths."""
    for name, value in vars(parsed).items():
        if name not in NO_INPUT:
            several = value if isinstance(value, list | tuple) else [value]
            yield from (
                one for one in several if isinstance(one, str | Path) and "\0" not in str(one)
            )
