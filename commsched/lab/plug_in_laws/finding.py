"""The finding for an examined law, in one sentence."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from commsched.errors import CommschedError


class Finding(NamedTuple):
    """A law, whether it holds (None: not examined), and what the examination saw."""

    law: str
    holds: bool | None
    seen: str

    def __str__(self) -> str:
        word = {True: "ok", False: "FAILS", None: "skipped"}[self.holds]
        return f"{word:8} {self.law}: {self.seen}"


class Skipped(Exception):
    """The reason why a law is not examined."""


def examined(law: str, examine: Callable[[], str], given: Finding | None = None) -> Finding:
    """Examine a law: `examine` returns what it saw, or raises the error that becomes the finding.

    `given` is the finding of a law without which this law says nothing.
    """
    if given is not None and not given.holds:
        how = "is skipped" if given.holds is None else "fails"
        return Finding(law, None, f"says nothing while {given.law!r} {how}")
    try:
        return Finding(law, True, examine())
    except Skipped as reason:
        return Finding(law, None, str(reason))
    except Exception as error:  # a plug-in is a user's code, which may raise anything
        return Finding(law, False, _told(error))


def _told(error: Exception) -> str:
    """Return the message of an error; for errors that are not ours, with type and place."""
    if isinstance(error, CommschedError):
        return str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(last.filename).name}, line {last.lineno}"
    return f"{type(error).__name__}: {error} ({where})"


def require(holds: bool, sentence: str) -> None:
    """Raise an error with this sentence unless the condition holds."""
    if not holds:
        raise CommschedError(sentence)
