"""The check of a request: it refuses what cannot be planned, and names the nearest that can."""

import math

from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.exchange.registry import METHODS, find_method, legal_methods, lossy_name
from commsched.nearest_name import most_similar, nearest
from commsched.net.bucket import BucketSpec, Piece
from commsched.planner.request import Request
from commsched.schedule.registry import COLLECTIVES

SEEDS = 2**62  # the largest that a plan file holds


def check(request: Request) -> None:
    """Reject forced methods, allowed codecs and time limits that cannot be planned."""
    for name, wanted in request.force.items():
        _check_forced(request, name, wanted)
    for name in request.lossy:
        try:
            lossy_name(name)
        except CommschedError as error:
            near = nearest(name, [*CODECS, *METHODS], 0.0)
            raise CommschedError(f"--allow {name}: {reason(error)}{near}") from None
    seed: object = request.seed
    if type(seed) is not int or not 0 <= seed <= SEEDS:
        raise CommschedError(f"seed must be a whole number from 0 to {SEEDS}, got {seed!r}")
    limit = request.time_limit
    if limit is not None and not 0 <= limit < math.inf:
        raise CommschedError(f"--time-limit must be finite and at least 0 s, got {limit}")


def _check_forced(request: Request, name: str, wanted: str) -> None:
    tensors, where = request.net.tensors, f"--force {name}={wanted}"
    if name not in tensors:
        near = nearest(name, tensors, 0.0) or "; it has none at all"
        raise CommschedError(f"{where}: no tensor named {name!r} in net {request.net.name!r}{near}")
    spec = BucketSpec.of((Piece(name, 0, tensors[name].numel),), tensors)
    try:
        method = find_method(wanted)
        method.phases(spec, request.machine.everyone)
    except CommschedError as error:
        near = nearest_method(request, wanted)
        raise CommschedError(f"{where}: {reason(error)}; nearest: {near!r}") from None
    if request.lossless and not method.lossless:
        near = nearest_method(request, wanted)
        raise CommschedError(
            f"{where}: the method loses something, and only lossless ones are wanted; nearest:"
            f" {near!r}"
        )


def reason(error: CommschedError) -> str:
    """Return an error's text without its advice, which looked at a part of the name or one kind."""
    return str(error).partition("; nearest: ")[0]


def nearest_method(request: Request, wanted: str, codec: str = "") -> str:
    """Return a method that can be forced, near one that cannot; `codec`: the codec it must have.

    The method has the same codec if possible, else the same collective with dense values, else a
    name similar to the wanted one.
    """
    collective, _, of = wanted.partition("+")
    codec = codec or (CODECS[of].name if of in CODECS else of)
    more = [codec] if codec in CODECS else []
    everyone = request.machine.everyone
    names = [m.name for m in legal_methods(everyone, lossless=request.lossless, more=more)]
    same = [name for name in names if name.partition("+")[2] == codec]
    same = [name for name in same if name.partition("+")[0] in COLLECTIVES] or same
    plain = [name for name in names if name == f"{collective}+dense"]
    if codec and same:
        kept = [name for name in same if name.partition("+")[0] == collective]
        return kept[0] if kept else most_similar(wanted, same, 0.0)
    return plain[0] if plain else most_similar(wanted, names, 0.0)
