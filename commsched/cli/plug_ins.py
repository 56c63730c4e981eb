"""What can be named in a plan, by kind, and what its own text says of it."""

import importlib
import inspect
from types import ModuleType
from typing import Any

from commsched import shipped
from commsched.coding.registry import CODECS
from commsched.cost.library import LIBRARIES
from commsched.exchange.registry import METHODS
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
    """Return the text of a plug-in: of its function or class, below the first line of its file."""
    registry = KINDS[kind]
    item, module = registry[name], importlib.import_module(registry.module(name))
    code = item if inspect.isroutine(item) or inspect.isclass(item) else type(item)
    written = [code] if code.__module__ == module.__name__ else _functions(module)
    about = [module.__doc__ or "", *(each.__doc__ or "" for each in written)]
    return "\n\n".join(inspect.cleandoc(text) for text in about if text)


def _functions(module: ModuleType) -> list[Any]:
    """Return the functions of a module, which together are a plug-in without a class."""
    members = vars(module).values()
    return [
        each for each in members if inspect.isfunction(each) and inspect.getmodule(each) is module
    ]


def listed(kind: str) -> dict[str, str]:
    """Return the names of a kind with a line each; of files only the names."""
    if kind in FILES:
        return dict.fromkeys(shipped.names(kind), "")
    return {name: line_of(kind, name) for name in KINDS[kind]}


def line_of(kind: str, name: str) -> str:
    """Return the first line that says what a plug-in is."""
    parts = text_of(kind, name).split("\n\n")
    return (parts[1] if len(parts) > 1 and kind != "planners" else parts[0]).partition("\n")[0]
