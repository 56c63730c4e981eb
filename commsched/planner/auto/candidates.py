"""The strategies, and the values of their parameters, that a search among strategies tries."""

from collections.abc import Iterator
from typing import NamedTuple

from commsched.errors import CommschedError
from commsched.plan.model import Param
from commsched.planner.request import Request
from commsched.program.parameters import Parameter
from commsched.program.registry import STRATEGIES

Params = dict[str, Param]


class StrategyCandidate(NamedTuple):
    """A strategy and those of its parameters that differ from their defaults."""

    strategy: str
    params: Params

    @property
    def words(self) -> str:
        """Name the strategy and its parameters as `commsched sweep` reads them."""
        return " ".join([self.strategy, *(f"{key}={value}" for key, value in self.params.items())])


class LeftOut(NamedTuple):
    """A candidate that has no row, and why."""

    candidate: StrategyCandidate
    why: str
    need: float = 0.0  # B of a rank, if the candidate does not fit
    floor: float = 0.0  # s that it takes at least, if the candidate is too slow


def candidates(request: Request) -> Iterator[StrategyCandidate | LeftOut]:
    """Yield the candidates of every registered strategy; parameters of the request are kept."""
    for name, strategy in STRATEGIES.items():
        unknown = [key for key in request.params if key not in strategy.parameters]
        if unknown:
            yield LeftOut(StrategyCandidate(name, {}), f"has no parameter {', '.join(unknown)}")
            continue
        try:
            yield from (StrategyCandidate(name, params) for params in _products(request, name))
        except CommschedError as error:
            yield LeftOut(StrategyCandidate(name, {}), str(error))


def _products(request: Request, name: str) -> list[Params]:
    """Combine the values that each parameter tries, in the order of the parameters."""
    known = STRATEGIES[name].parameters
    given = {
        key: known[key].checked(value, f"strategy {name!r}: {key}")
        for key, value in request.params.items()
    }
    found = [given]
    for key, parameter in known.items():
        if key not in given and parameter.tries:
            found = _longer(request, found, key, parameter)
    return found


def _longer(request: Request, found: list[Params], key: str, parameter: Parameter) -> list[Params]:
    """Give every combination each value of one more parameter; drop those that allow none."""
    longer: list[Params] = []
    refused: CommschedError | None = None
    for before in found:
        try:
            values = parameter.values(request.net, request.machine, before)
        except CommschedError as error:
            refused = refused or error
            continue
        longer += [{**before, key: value} for value in values]
    if refused is not None and not longer:
        raise refused
    return longer


def larger(candidate: StrategyCandidate, given: Params) -> StrategyCandidate | None:
    """Return the candidate without parameters that only save memory; None if it has none."""
    known = STRATEGIES[candidate.strategy].parameters
    saving = [key for key in candidate.params if known[key].saves and key not in given]
    firsts = {key: known[key].default for key in saving}
    found = candidate._replace(params={**candidate.params, **firsts})
    return None if found == candidate else found
