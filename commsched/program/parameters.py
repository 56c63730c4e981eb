"""Parameters of strategies: defaults, and the words or numbers that are allowed."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from commsched.errors import CommschedError
from commsched.machine.model import Machine
from commsched.net.graph import Net
from commsched.plan.model import Param

# Values to try for a net, a machine and the parameters before this one.
Tries = Callable[[Net, Machine, Mapping[str, Param]], Iterable[Param]]


class Range(NamedTuple):
    """The numbers from `low` to `high`, both included; whole numbers if both are integers."""

    low: float
    high: float

    def __contains__(self, value: object) -> bool:
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        right = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        return right and self.low <= value <= self.high  # type: ignore[operator]

    def __str__(self) -> str:
        return f"{self.low:.16g} to {self.high:.16g}"


class Parameter(NamedTuple):
    """A parameter of a strategy."""

    default: Param
    allowed: tuple[Param, ...] | Range
    tries: tuple[Param, ...] | Tries = ()  # values that a search tries; empty: the default
    learns: bool = True  # whether learning depends on the value
    saves: bool = False  # values only save memory: tried only if the default does not fit

    def values(self, net: Net, machine: Machine, before: Mapping[str, Param]) -> list[Param]:
        """List the values that a search tries; `before`: those of the parameters before."""
        tries = self.tries if isinstance(self.tries, tuple) else self.tries(net, machine, before)
        return list(tries) or [self.default]

    def checked(self, value: Param, where: str) -> Param:
        """Return a value with the default's type, or refuse it; `where` names the parameter."""
        typed = _typed(value, self.default)
        if typed not in self.allowed:
            allowed = self.allowed
            names = str(allowed) if isinstance(allowed, Range) else ", ".join(map(str, allowed))
            raise CommschedError(f"{where} cannot be {value!r}; allowed: {names}")
        return typed


def settled(
    strategy: str, params: Mapping[str, Param], parameters: Mapping[str, Parameter]
) -> dict[str, Param]:
    """Return the values of all parameters: `params`, else the defaults."""
    settings = {key: parameter.default for key, parameter in parameters.items()}
    for key, value in params.items():
        if key not in parameters:
            known = ", ".join(parameters)
            raise CommschedError(f"strategy {strategy!r} has no parameter {key!r}; known: {known}")
        settings[key] = parameters[key].checked(value, f"strategy {strategy!r}: {key}")
    return settings


def _typed(value: Param, default: Param) -> Param:
    """Return the number that a word from a command line spells; any other value unchanged."""
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
