"""The plug-ins that a plan can name, by kind, and their docstrings."""

import inspect
import sys
from typing import Any

from commsched import shipped
from commsched.coding.registry import CODECS
from commsched.exchange.registry import METHODS
from commsched.machine.library import LIBRARIES, Library
from commsched.planner.registry import PLANNERS
from commsched.program.registry import STRATEGIES
from commsched.registry import Registry
from commsched.schedule.registry import COLLECTIVES

KINDS: dict[str, Registry[Any]] = {
    "collectives": COLLECTIVES,
    "codecs": CODECS,
    "methods": METHODS,
    "strategies": STRATEGIES,
    "planners": PLANNERS,
    "libraries": LIBRARIES,
}
FILES = ("nets", "machines")


def text_of(kind: str, name: str) -> str:
    """Return the docstrings of a plug-in: of its file, and of its function or class."""
    item = KINDS[kind][name]
    made = item.algorithm if isinstance(item, Library) else item
    code = made if inspect.isroutine(made) or inspect.isclass(made) else type(made)
    about = [sys.modules[code.__module__].__doc__, code.__doc__]
    return "\n\n".join(inspect.cleandoc(text) for text in about if text)


def listed(kind: str) -> dict[str, str]:
    """Return name -> one-line description of a kind; nets and machines have only names."""
    if kind in FILES:
        return dict.fromkeys(shipped.names(kind), "")
    return {name: line_of(kind, name) for name in KINDS[kind]}


def line_of(kind: str, name: str) -> str:
    """Return the first line that says what a plug-in is."""
    parts = text_of(kind, name).split("\n\n")
    return (parts[1] if len(parts) > 1 and kind != "planners" else parts[0]).partition("\n")[0]
