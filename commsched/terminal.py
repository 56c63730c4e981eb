"""Text that is safe on a terminal: control characters and other unprintable ones are escaped."""

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

LONGEST_VALUE = 80  # characters of a quoted value in an error
LONGEST_WORD = 400  # characters without a blank, such as a path
LONGEST_LINE = 4000
RED, PLAIN = "\x1b[31m", "\x1b[0m"
# A quote opens after a character that is no letter and ends before one: not the plan's, ranks'.
QUOTED = re.compile(rf"(?<![\w\\])(['\"`])((?:(?!\1)[^\\]|\\.){{{LONGEST_VALUE + 1},}}?)\1(?!\w)")
WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


def printable(text: str, lines: bool = False) -> str:
    """Escape as JSON does, such as \\u001b, what a terminal obeys or cannot show.

    With `lines`, ends of lines stay.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c == "\n") else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]


def shortened(text: str) -> str:
    """Leave out the middle of values, words and lines that are too long to be read."""
    text = QUOTED.sub(lambda m: f"{m[1]}{_cut(m[2], LONGEST_VALUE)}{m[1]}", text)
    text = WORD.sub(lambda m: _cut(m[0], LONGEST_WORD), text)
    return "\n".join(_cut(line, LONGEST_LINE) for line in text.split("\n"))


def _cut(text: str, longest: int) -> str:
    """Keep the two ends of a text if it is longer, and make it no longer than that."""
    half = longest // 2 - 2
    return text if len(text) <= longest else f"{text[:half]}...{text[-half:]}"


class _Printable:
    """A stream that writes printable text."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text, escaped; also what the stream's encoding lacks."""
        encoding = self.stream.encoding or "utf-8"
        told = printable(text, lines=True).encode(encoding, "backslashreplace")
        self.stream.write(told.decode(encoding))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def screen() -> TextIO:
    """Return stderr for what moves the cursor itself, such as a progress bar."""
    return sys.stderr.stream if isinstance(sys.stderr, _Printable) else sys.stderr


def show(line: str, *, alarming: bool = False) -> None:
    """Print a line to stdout; in red if it is alarming, on a terminal without NO_COLOR."""
    out = sys.stdout
    bare = out.stream if isinstance(out, _Printable) else out
    red = alarming and bare.isatty() and not os.environ.get("NO_COLOR")
    bare.write(RED if red else "")
    out.write(line)
    bare.write(PLAIN if red else "")
    out.write("\n")


@contextmanager
def printable_streams() -> Iterator[None]:
    """Let stdout and stderr write printable text only."""
    with _streams(*(cast(TextIO, _Printable(each)) for each in (sys.stdout, sys.stderr))):
        yield


@contextmanager
def plain_streams() -> Iterator[None]:
    """Let a user's own program write to stdout and stderr what it likes."""
    found = (
        each.stream if isinstance(each, _Printable) else each for each in (sys.stdout, sys.stderr)
    )
    with _streams(*found):
        yield


@contextmanager
def _streams(out: TextIO, error: TextIO) -> Iterator[None]:
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = out, error
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
