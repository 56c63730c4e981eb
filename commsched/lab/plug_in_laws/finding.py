"""What was found when a law was examined, in one sentence."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from commsched.errors import CommschedError


class Finding(NamedTuple):
    """A law, whether it holds (None: not examined), and what was seen."""

    law: str
    holds: bool | None
    seen: str

    def __str__(self) -> str:
        word = {True: "ok", False: "FAILS", None: "skipped"}[self.holds]
        return f"{word:8} {self.law}: {self.seen}"


class Skipped(Exception):
    """Says why a law is not examined."""


def examined(law: str, examine: Callable[[], str], given: Finding | None = None) -> Finding:
    """Examine a law: `examine` returns what it saw; what it raises is the finding.

    A law that says something only where another one holds is `given` that one.
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
    """Say what went wrong; of what is no sentence of ours also where."""
    if isinstance(error, CommschedError):
        return str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(last.filename).name}, line {last.lineno}"
    return f"{type(error).__name__}: {error} ({where})"


def require(holds: bool, sentence: str) -> None:
    """Raise a sentence if what it denies does not hold."""
    if not holds:
        raise CommschedError(sentence)
