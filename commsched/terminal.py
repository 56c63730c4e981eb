"""Text that is safe on a terminal: escaped, folded to its width, its verdicts coloured."""

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

LONGEST_VALUE = 80  # characters of a quoted value in an error
LONGEST_WORD = 400  # characters without a blank, such as a path
LONGEST_LINE = 4000
RED, YELLOW, GREEN, PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[32m", "\x1b[0m"
# A quote opens after a character that is no letter and ends before one: not the plan's, ranks'.
QUOTED = re.compile(rf"(?<![\w\\])(['\"`])((?:(?!\1)[^\\]|\\.){{{LONGEST_VALUE + 1},}}?)\1(?!\w)")
WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")
COLOURS = (  # of what a line says
    (RED, re.compile(r"^(commsched:| *FAILS\b|MISSED\b|fail\b)", re.MULTILINE)),
    (YELLOW, re.compile(r"^(warning:|warn\b| *skipped\b|do not compress\b)", re.MULTILINE)),
    (GREEN, re.compile(r"^( *ok|met)\b|(?<=: )compress(?=;)", re.MULTILINE)),
)
DATA = ("{", "[")  # how JSON begins


def columns() -> int | None:
    """Return the width of the terminal that shows stdout; None if none does."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def coloured(stream: TextIO) -> bool:
    """Tell whether a stream shows colours: a terminal, unless NO_COLOR is set (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def folded(text: str, width: int) -> str:
    """Break lines between words where they are longer than `width`."""
    return "\n".join(
        line
        if len(line) <= width
        else textwrap.fill(
            line,
            width,
            subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2),
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
            drop_whitespace=True,
        )
        for line in text.split("\n")
    )


def printable(text: str, lines: bool = False) -> str:
    """Escape, as JSON does, characters that a terminal obeys or cannot show, such as \\u001b.

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
    """Shorten a text to `longest` characters by leaving out its middle."""
    half = longest // 2 - 2
    return text if len(text) <= longest else f"{text[:half]}...{text[-half:]}"


class OutputLostError(Exception):
    """Raised if stdout cannot be written, such as to a full disk; the text is one sentence."""


class _Stream:
    """A stream that, if it cannot be written, is an error on stdout and silent on stderr."""

    def __init__(self, stream: TextIO, *, out: bool) -> None:
        self.stream = stream
        self.out = out

    def write(self, text: str) -> int:
        """Write a text as it is."""
        self._try(lambda: self.stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Hand over what was written."""
        self._try(self.stream.flush)

    def _try(self, do: Callable[[], object]) -> None:
        try:
            do()
        except BrokenPipeError:
            raise
        except OSError as error:
            with open(os.devnull, "w") as nothing:  # what is left is not tried again at the end
                os.dup2(nothing.fileno(), self.stream.fileno())
            if self.out:
                raise OutputLostError(f"stdout cannot be written: {error.strerror}") from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _Printable(_Stream):
    """A stream that writes printable text; `bare` writes what moves the cursor."""

    def __init__(self, stream: TextIO, *, out: bool) -> None:
        super().__init__(stream, out=out)
        self.bare = _Stream(stream, out=out)

    def write(self, text: str) -> int:
        """Write a text, escaped; also what the stream's encoding lacks."""
        encoding = self.stream.encoding or "utf-8"
        told = printable(text, lines=True).encode(encoding, "backslashreplace").decode(encoding)
        if self.stream.isatty() and not text.startswith(DATA):
            told = self._for_people(told)
        super().write(told)
        return len(text)

    def _for_people(self, text: str) -> str:
        if self.out:
            text = folded(text, shutil.get_terminal_size().columns)
        for colour, words in COLOURS if coloured(self.stream) else ():
            text = words.sub(rf"{colour}\g<0>{PLAIN}", text)
        return text

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)


def say(sentence: str) -> None:
    """Report the state of work on stderr, unbuffered."""
    print(sentence, file=sys.stderr, flush=True)


def screen() -> TextIO:
    """Return stderr for output that moves the cursor, such as a progress bar."""
    return cast(TextIO, sys.stderr.bare) if isinstance(sys.stderr, _Printable) else sys.stderr


def show(line: str, *, alarming: bool = False) -> None:
    """Print a line to stdout; in red if it is alarming, on a terminal without NO_COLOR."""
    out = sys.stdout
    bare = out.bare if isinstance(out, _Printable) else out
    red = alarming and coloured(out)
    bare.write(RED if red else "")
    out.write(line)
    bare.write(PLAIN if red else "")
    out.write("\n")


@contextmanager
def printable_streams() -> Iterator[None]:
    """Let stdout and stderr write printable text only; fold lines on stdout."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started this process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, it lives as long as the process
    made = (_Printable(sys.stdout, out=True), _Printable(sys.stderr, out=False))
    with _streams(*(cast(TextIO, each) for each in made)):
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
