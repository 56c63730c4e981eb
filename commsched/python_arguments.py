"""Arguments of the Python surface: their quantities may be texts, and errors name them."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

from commsched.errors import CommschedError
from commsched.nearest_name import nearest
from commsched.quantities import (
    DENSITY,
    ERROR,
    GAIN,
    GIGABYTES,
    INCHES,
    MEGABYTES,
    PATIENCE,
    POSITIVE,
)

QUANTITIES = {
    "scale": POSITIVE,
    "stretch": POSITIVE,
    "density": DENSITY,
    "gain": GAIN,
    "memory": GIGABYTES,
    "bucket": MEGABYTES,
    "time_limit": PATIENCE,
    "max_error": ERROR,
    "width": INCHES,
    "height": INCHES,
}
# Whole commands stay as they are. Translated are --set KEY=..., and --OPTION, alone or with its
# value, which is a number or a word in capitals.
OPTION = re.compile(r"(commsched [a-z][^;]*)|--set (?=\w+=)|--([a-z]+(?:-[a-z]+)*)( (?=[0-9A-Z]))?")


def arguments_of(
    kind: type, what: str, given: Mapping[str, Any], without: Collection[str] = ()
) -> dict[str, Any]:
    """Return checked fields of a dataclass; a number of a quantity is in the unit used inside.

    `what` names the thing in errors; `without`: fields that other arguments set.
    """
    known = {field.name: field.type for field in fields(kind) if field.name not in without}
    for name in given:
        if name not in known:
            near = nearest(name, known)
            raise CommschedError(f"{what} has no option {name!r}; known: {', '.join(known)}{near}")
    return {name: _checked(name, known[name], value) for name, value in given.items()}


def _checked(name: str, kind: Any, value: Any) -> Any:
    if kind is str and not isinstance(value, str):
        raise CommschedError(f"{name} is a text, got {value!r}")
    if kind == frozenset[str]:
        return frozenset(names_of(value))
    return value if value is None or name not in QUANTITIES else number_of(name, value)


def number_of(name: str, value: object) -> float:
    """Return a quantity in the unit used inside; `value` is a text, or a number in that unit."""
    if isinstance(value, Real):
        return QUANTITIES[name].checked(float(value), name, str(value))
    return QUANTITIES[name].read(str(value), name)


def whole_number(name: str, value: object, least: int) -> int:
    """Return a whole number; refuse one below `least`."""
    if not isinstance(value, Integral) or value < least:
        raise CommschedError(f"{name} must be a whole number, at least {least}, got {value!r}")
    return int(value)


def names_of(given: object) -> tuple[str, ...]:
    """Return the names in a text, between commas, or in a list of texts."""
    several = given.split(",") if isinstance(given, str) else given
    names = list(several) if isinstance(several, Iterable) else [several]
    if not all(isinstance(name, str) for name in names):
        raise CommschedError(f"names are a text or a list of texts, got {given!r}")
    return tuple(filter(None, names))


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
