"""Parameters of strategies that are numbers in a range, beside those that are words."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from commsched.errors import CommschedError
from commsched.plan.model import Param


class Range(NamedTuple):
    """From `low` to `high`, both allowed; whole numbers where both are integers."""

    low: float
    high: float

    def __contains__(self, value: object) -> bool:
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        right = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        return right and self.low <= value <= self.high  # type: ignore[operator]

    def __str__(self) -> str:
        return f"{self.low:.16g} to {self.high:.16g}"


Options = tuple[Param, ...] | Range


def settled(
    name: str,
    given: Mapping[str, Param],
    defaults: Mapping[str, Param],
    allowed: Mapping[str, Options],
) -> dict[str, Param]:
    """The given parameters over the defaults, of the defaults' types; others are refused."""
    found = dict(defaults)
    for key, value in given.items():
        if key not in defaults:
            known = ", ".join(defaults)
            raise CommschedError(f"strategy {name!r} has no parameter {key!r}; known: {known}")
        found[key] = _typed(value, defaults[key])
        if found[key] not in allowed[key]:
            some = allowed[key]
            names = str(some) if isinstance(some, Range) else ", ".join(map(str, some))
            raise CommschedError(f"strategy {name!r}: {key} cannot be {value!r}; allowed: {names}")
    return found


def _typed(value: Param, default: Param) -> Param:
    """A word from a command line as the number that it spells; anything else as it is."""
    if not isinstance(default, int | float) or isinstance(value, bool):
        return value
    try:
        number = float(value)
    except ValueError:
        return value
    whole = math.isfinite(number) and number == int(number)
    if isinstance(default, int):
        return int(number) if whole else value
    return number
