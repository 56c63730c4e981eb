"""Tables and lines fit the terminal; verdicts and errors have colours there, and nowhere else."""

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.terminal import folded
from commsched.text_table import NARROW, table
from tests.support.jobs import ROOT

CODE = re.compile(r"\x1b\[\d+m")
words = st.text("ab+-: ", min_size=1, max_size=60).map(str.strip).filter(bool)


@given(rows=st.lists(st.tuples(words, words, words, words), min_size=1, max_size=4), data=st.data())
def test_a_table_fits_and_loses_no_letter(rows, data):
    width = data.draw(st.integers(2 * NARROW + 2, 200))
    header = ("name", "second", "third", "fourth")
    lines = table(header, rows, width=width).splitlines()
    assert max(map(len, lines)) <= width
    letters = "".join(sorted("".join(lines).replace(" ", "")))
    first = "".join(("name", *(row[0] for row in rows)))
    for blocks in range(1, 4):  # the first column is repeated in each block
        want = "".join((*header[1:], *(cell for row in rows for cell in row[1:]))) + first * blocks
        if letters == "".join(sorted(want.replace(" ", ""))):
            return
    raise AssertionError(lines)


def test_numbers_stay_whole_and_what_does_not_fit_follows_below():
    row = ("ring+dense", "123456789", "a method of many words", "987654321")
    wide = table(("method", "ms", "why", "bytes"), [row], {1, 3})
    assert wide.count("\n") == 1
    assert (
        table(("method", "ms", "why", "bytes"), [row], {1, 3}, width=30)
        == """\
method             ms
ring+dense  123456789

method      why
ring+dense  a method of many
            words

method          bytes
ring+dense  987654321"""
    )


def test_a_line_is_broken_between_words():
    assert folded("one two three\n  four five", 9) == "one two\n  three\n  four\n    five"
    assert folded("averylongpath/without/blanks", 9) == "averylongpath/without/blanks"


def shown(*command: str, width: int = 72, **variables: str) -> str:
    """What a terminal of that width shows of a command."""
    ours, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, width, 0, 0))
    told = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")}
    told |= {"TERM": "xterm", "PYTHONPATH": str(ROOT), **variables}
    run = [sys.executable, "-m", "commsched", *command]
    subprocess.run(
        run, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal, env=told, check=False
    )
    os.close(terminal)
    parts = []
    with contextlib.suppress(OSError):  # its end
        while part := os.read(ours, 4096):
            parts.append(part)
    os.close(ours)
    return b"".join(parts).decode().replace("\r", "")


def test_what_a_terminal_shows_fits_it():
    lines = shown("show", "p3.16xlarge").splitlines()
    assert len(lines) > 10
    assert max(map(len, lines)) <= 72


@pytest.mark.by_day(1)
@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_errors_are_coloured_unless_that_is_not_wanted(variables):
    said = shown("explain", "rign", **variables)
    assert CODE.sub("", said).startswith("commsched: nothing is called 'rign'")
    assert bool(CODE.search(said)) == (not variables)


def test_json_on_a_terminal_is_json():
    found = json.loads(shown("show", "p3.16xlarge", "--json"))
    assert len(found["source"]) > 72
