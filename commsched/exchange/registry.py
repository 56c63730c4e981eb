"""All methods by name: pairs `collective+codec`, sums of several phases, `sum+selection`."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import product

from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.exchange.broadcast import BROADCAST
from commsched.exchange.experts import PREFIX as TO_EXPERTS
from commsched.exchange.experts import find_to_experts
from commsched.exchange.method import Choice, Method, Phase
from commsched.exchange.pair import Pair, illegal, route
from commsched.exchange.sharded import PREFIX, find_sharded
from commsched.exchange.sparsified import Sparsified, stands_first
from commsched.machine.model import Group
from commsched.nearest_name import nearest
from commsched.plan.model import Plan
from commsched.registry import Registry
from commsched.schedule.registry import COLLECTIVES

METHODS: Registry[Method] = Registry("method", "commsched.methods")


@lru_cache(maxsize=8192)
def find_method(name: str) -> Method:
    """Return the method called `name`, cached; pairs are written `ring+dense`, `zen+topk:0.05`."""
    if name == BROADCAST.name:
        return BROADCAST
    if name.startswith(PREFIX):
        return find_sharded(name)
    if name.startswith(TO_EXPERTS):
        return find_to_experts(name)
    collective, plus, codec = name.partition("+")
    if plus and collective in COLLECTIVES:
        return Pair(collective, codec)
    if plus and (collective.partition(":")[0] in METHODS or collective in METHODS):
        return Sparsified(METHODS[collective], codec)
    if plus:
        near = nearest(collective, [*COLLECTIVES, *sparse_sums()])
        raise CommschedError(
            f"no collective named {collective!r}; known: {', '.join(COLLECTIVES)}; sparse sums"
            f" that may follow a selection: {', '.join(sparse_sums())}{near}"
        )
    if name.partition(":")[0] in METHODS or name in METHODS:
        return METHODS[name]
    pairs = "COLLECTIVE+CODEC such as 'ring+dense'"
    known = ", ".join(METHODS) or "none registered"
    near = nearest(name, METHODS)
    raise CommschedError(f"no method named {name!r}; allowed: {pairs}, or one of: {known}{near}")


def sparse_sums() -> list[str]:
    """List the methods that a selection may stand before, as in `zen+topk:0.05`."""
    return [name for name, method in METHODS.items() if method.sparse]


def lossy_name(name: str) -> str:
    """Return the canonical name of a codec or of a method of several phases."""
    if name.partition(":")[0] in METHODS or name in METHODS:
        return METHODS[name].name
    return CODECS[name].name


def legal_methods(
    group: Group, *, lossless: bool = False, more: Iterable[str] = ()
) -> Iterator[Method]:
    """List the methods that can sum a bucket over the group, in a fixed order.

    `more` are codecs and methods that are not listed, such as `topk:0.05` or `powersgd:4`; each
    selection among them also stands in front of every sparse sum.
    """
    names = [lossy_name(name) for name in more]
    methods = dict(METHODS) | {name: METHODS[name] for name in names if name in METHODS}
    codecs = dict(CODECS) | {name: CODECS[name] for name in names if name not in METHODS}
    for collective in COLLECTIVES:
        try:
            schedule = route(collective, group)
        except CommschedError:
            continue  # the collective does not fit this shape of machine
        if not schedule.apt:
            continue
        for name, codec in codecs.items():
            if (codec.lossless or not lossless) and illegal(schedule, codec) is None:
                yield Pair(collective, name)
    for method in methods.values():
        if method.lossless or not lossless:
            yield method
    chosen = [name for name in names if name not in METHODS and stands_first(name)]
    for name, method in product([] if lossless else chosen, methods.values()):
        if method.sparse:
            yield Sparsified(method, name)


@lru_cache(maxsize=8192)
def method_at(name: str, step: int) -> Method:
    """Return the method that `name` stands for in a step of a training."""
    return find_method(name).at(step)


@lru_cache(maxsize=8192)
def phases_of(plan: Plan, index: int, method: str | None = None) -> tuple[Phase | Choice, ...]:
    """Return the phases of a plan's launch, or of another method for that launch; cached."""
    launch = plan.launches[index]
    found, group = find_method(method or launch.method), plan.group(launch)
    return found.phases(found.seen(plan.spec(launch), group), group)
