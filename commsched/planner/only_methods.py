"""A request restricted to some methods."""

from collections.abc import Sequence
from dataclasses import replace

from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.exchange.method import Method
from commsched.exchange.registry import METHODS, find_method, legal_methods, lossy_name
from commsched.planner.request import Request
from commsched.planner.validate_request import nearest_method, reason


def only(request: Request, names: Sequence[str]) -> Request:
    """Allow only these methods, lossy ones included; without names, change nothing."""
    if not names:
        return request
    found = [_found(request, name) for name in names]
    wanted = {method.name: method for method in found}
    lossy = [_lossy_name(method) for method in wanted.values() if not method.lossless]
    if request.lossless and lossy:
        losing = next(method.name for method in wanted.values() if not method.lossless)
        raise CommschedError(
            f"--lossless and --method {losing} contradict each other; leave one out"
        )
    more = [m.coding for m in wanted.values() if m.lossless and m.coding not in (*CODECS, "")]
    request = replace(request, lossy=tuple(dict.fromkeys([*request.lossy, *lossy, *more])))
    legal = {m.name for m in legal_methods(request.machine.everyone, more=request.lossy)}
    for name in wanted.keys() - legal:
        raise _refused(request, name, "")
    return replace(request, without=request.without | (legal - wanted.keys()))


def not_used(names: Sequence[str], lossy: Sequence[str]) -> list[str]:
    """Return those of some known lossy codecs that no method of these names uses."""
    used = {_lossy_name(find_method(name)) for name in names}
    return [name for name in lossy if lossy_name(name) not in used]


def _lossy_name(method: Method) -> str:
    """Return the name by which a lossy method is allowed."""
    return method.name if method.name.partition(":")[0] in METHODS else method.coding


def _found(request: Request, name: str) -> Method:
    try:
        return find_method(name)
    except CommschedError as error:
        raise _refused(request, name, f": {reason(error)}") from None


def _refused(request: Request, name: str, why: str) -> CommschedError:
    near = nearest_method(request, name)
    return CommschedError(
        f"--method {name} cannot sum a bucket on {request.machine.name!r}{why}; nearest: {near!r}"
    )
