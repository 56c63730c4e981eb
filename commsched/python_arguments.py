"""Arguments of the Python surface: their quantities may be texts, and errors name them."""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from numbers import Real
from typing import Any

from commsched.errors import CommschedError
from commsched.nearest import nearest
from commsched.quantities import ERROR, GIGABYTES, INCHES, MEGABYTES, PATIENCE

QUANTITIES = {
    "memory": GIGABYTES,
    "bucket": MEGABYTES,
    "time_limit": PATIENCE,
    "max_error": ERROR,
    "width": INCHES,
    "height": INCHES,
}
# What is left as it is: whole commands. What is translated: --set KEY=..., and --OPTION with what
# looks like its value (a number, or a word in capitals), or alone.
OPTION = re.compile(r"(commsched [a-z][^;]*)|--set (?=\w+=)|--([a-z]+(?:-[a-z]+)*)( (?=[0-9A-Z]))?")


def arguments_of(
    kind: type, what: str, given: Mapping[str, Any], without: Collection[str] = ()
) -> dict[str, Any]:
    """Return checked fields of a dataclass; a number of a quantity is in the unit used inside.

    `what` names the thing in errors; `without`: fields that are given otherwise.
    """
    known = [field.name for field in fields(kind) if field.name not in without]
    for name in given:
        if name not in known:
            near = nearest(name, known)
            raise CommschedError(f"{what} has no option {name!r}; known: {', '.join(known)}{near}")
    return {name: _checked(name, value) for name, value in given.items()}


def _checked(name: str, value: Any) -> Any:
    quantity = QUANTITIES.get(name)
    if quantity is None or value is None:
        return value
    if isinstance(value, Real):
        return quantity.checked(float(value), name, str(value))
    return quantity.read(str(value), name)


@contextmanager
def python_words() -> Iterator[None]:
    """Translate an error of the block: an option of the command line is an argument in Python."""
    try:
        yield
    except CommschedError as error:
        error.args = (OPTION.sub(_argument, str(error)), *error.args[1:])
        raise


def _argument(found: re.Match[str]) -> str:
    command, option, value = found.groups()
    if command or not option:
        return command or ""
    return option.replace("-", "_") + ("=" if value else "")
