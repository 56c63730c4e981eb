"""A request for some methods and no others."""

from collections.abc import Sequence
from dataclasses import replace

from commsched.errors import CommschedError
from commsched.exchange.registry import METHODS, find_method, legal_methods
from commsched.planner.request import Request
from commsched.planner.validate_request import nearest_method


def only(request: Request, names: Sequence[str]) -> Request:
    """Allow only these methods, also those that lose something; without names, change nothing."""
    if not names:
        return request
    wanted = {find_method(name).name: find_method(name) for name in names}
    lossy = [
        method.name if method.name.partition(":")[0] in METHODS else method.coding
        for method in wanted.values()
        if not method.lossless
    ]
    request = replace(request, lossy=tuple(dict.fromkeys([*request.lossy, *lossy])))
    legal = {m.name for m in legal_methods(request.machine.everyone, more=request.lossy)}
    for name in wanted.keys() - legal:
        near = nearest_method(request, name)
        raise CommschedError(
            f"--method {name} cannot sum a bucket on {request.machine.name!r}; nearest: {near!r}"
        )
    return replace(request, without=request.without | (legal - wanted.keys()))
