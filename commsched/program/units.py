"""Units: runs of layers whose gradients are reduced together, and whose parameters are gathered."""

from functools import lru_cache
from typing import NamedTuple

from commsched.errors import CommschedError
from commsched.plan.model import Plan

GATHER, REGATHER = "gather", "regather"  # purposes: before forward, and again before backward


class LayerUnit(NamedTuple):
    """Layers in a row, and the launches of their tensors; every launch has all of them."""

    start: int  # the first layer
    stop: int  # behind the last layer
    reduce: int  # launch of the gradients
    gather: int  # launch of the parameters, before forward
    regather: int | None  # the same before backward; None: the unit stays gathered in between


@lru_cache(maxsize=64)
def units(plan: Plan) -> tuple[LayerUnit, ...]:
    """Return a plan's units in the order of forward; refuse launches that form none."""
    layers = plan.net.layers
    home = {t.name: position for position, layer in enumerate(layers) for t in layer.tensors}
    gathers = {(x.purpose, x.pieces): i for i, x in enumerate(plan.launches)}
    found: list[tuple[int, int, int]] = []  # first layer, last layer, launch
    for index, launch in enumerate(plan.launches):
        if launch.purpose:
            continue
        positions = {home[piece.tensor] for piece in launch.pieces}
        whole = [(t.name, 0, t.numel) for p in sorted(positions) for t in layers[p].tensors]
        if sorted(map(tuple, launch.pieces)) != sorted(whole):
            raise _refusal(plan, launch.name, "has a part of a layer; allowed are whole layers")
        found.append((min(positions), max(positions), index))
    found.sort()
    made = []
    for number, (first, last, index) in enumerate(found):
        name, pieces = plan.launches[index].name, plan.launches[index].pieces
        stop = found[number + 1][0] if number + 1 < len(found) else len(layers)
        if last >= stop:
            raise _refusal(plan, name, "has layers on both sides of another launch's")
        if (GATHER, pieces) not in gathers:
            raise _refusal(plan, name, f"has no launch of purpose {GATHER!r} with its pieces")
        again = gathers.get((REGATHER, pieces))
        made.append(LayerUnit(first if number else 0, stop, index, gathers[GATHER, pieces], again))
    known = {index for unit in made for index in (unit.reduce, unit.gather, unit.regather)}
    for index, launch in enumerate(plan.launches):
        if index not in known:
            raise _refusal(plan, launch.name, "gathers other pieces than a launch of gradients")
    return tuple(made)


def _refusal(plan: Plan, name: str, what: str) -> CommschedError:
    return CommschedError(f"strategy {plan.strategy!r}: launch {name!r} {what}")
