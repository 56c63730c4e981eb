"""The first planner: near-equal buckets in backward order, the cheapest legal method for each."""

from bisect import insort
from collections.abc import Generator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from commsched.cost.play import Played
from commsched.cost.price import LIMIT, Price, ToPrice, exchanges, price_steps
from commsched.exchange.method import Method, chooses
from commsched.exchange.registry import find_method
from commsched.machine.model import Group, Machine
from commsched.net.bucket import BucketSpec, Piece
from commsched.plan.model import Launch, Plan
from commsched.planner.launches import Priced, buckets, cheapest_of, launches
from commsched.planner.registry import PLANNERS
from commsched.planner.request import Request
from commsched.planner.search.shortlist import without_skippers
from commsched.simulate.engine import simulate

# Numbers of buckets to try if the user gives no size; the best simulated iteration wins.
COUNTS = (1, 4, 8, 16, 32, 64)

# Ranks up to which playing every move takes no longer than a closed form.
FEW = 8
# A closed form is at most 15 % above the played price (`cost.closed`): a method further above the
# second is not played.
MARGIN = 1.25

# Bucket and forced method -> seconds and name of its methods, cheapest first.
Known = dict[tuple[BucketSpec, str], Priced]


@PLANNERS.add("greedy")
def greedy(request: Request) -> Plan:
    """Try some bucket sizes; keep the plan with the shortest simulated iteration."""
    total = 4.0 * request.net.numel
    sizes = {max(total / count, 1.0) for count in COUNTS}
    if request.bucket is not None:
        sizes = {request.bucket}
    groups = [buckets(request, size) for size in sorted(sizes)]
    known = _priced(request, groups)
    plans = [_with_buckets(request, some, known) for some in groups]
    return min(plans, key=_iteration) if len(plans) > 1 else plans[0]


def _iteration(plan: Plan) -> float:
    """Return the seconds of the second simulated step: the first has no exchanges left over."""
    return float(simulate(plan, steps=3).iterations[1])


def _priced(request: Request, every: list[list[list[Piece]]]) -> Known:
    """Price the methods of all buckets of some plans."""
    group = request.machine.everyone
    methods, wanted = list(request.methods(group)), dict[tuple[BucketSpec, str], Asked]()
    for pieces in (pieces for groups in every for pieces in groups):
        spec = BucketSpec.of(tuple(pieces), request.net.tensors)
        forced = request.force.get(pieces[0].tensor, "")
        if (spec, forced) not in wanted:
            options = [find_method(forced)] if forced else useful(methods, spec)
            wanted[spec, forced] = Asked(options, spec, request.machine, group)
    return dict(zip(wanted, cheapest_all([*wanted.values()]), strict=True))


def _with_buckets(request: Request, groups: list[list[Piece]], known: Known) -> Plan:
    """Return the plan with the cheapest method for each bucket."""

    def choose(launch: Launch) -> Launch:
        spec = BucketSpec.of(launch.pieces, request.net.tensors)
        return cheapest_of(launch, known[spec, launch.method])

    return replace(launches(request, groups, choose), planner="greedy")


def useful(methods: list[Method], spec: BucketSpec) -> list[Method]:
    """Return the methods; if the bucket has no zeros, without codecs that leave out zeros."""
    whole = np.array([spec.numel])
    if spec.nonzeros(np.zeros(1, np.int64), whole, 1)[0] < spec.numel:
        return methods
    return without_skippers(methods)


def without_choices(methods: list[Method], spec: BucketSpec, group: Group) -> list[Method]:
    """Return the methods without those whose exchanges depend on data: teams could differ."""
    return [m for m in methods if not chooses(m.phases(m.seen(spec, group), group))]


class Asked(NamedTuple):
    """A bucket, and the methods that may sum it."""

    methods: Sequence[Method]
    spec: BucketSpec
    machine: Machine
    group: Group


def cheapest(methods: Sequence[Method], spec: BucketSpec, machine: Machine, group: Group) -> Priced:
    """Return seconds and names of methods, cheapest first.

    Methods that cannot be the second cheapest may be missing.
    """
    return cheapest_all([Asked(methods, spec, machine, group)])[0]


def cheapest_all(every: Sequence[Asked]) -> list[Priced]:
    """Return the result of `cheapest` for each bucket; all buckets are priced together."""
    found: dict[int, Priced] = {}
    going = {i: _ranked(asked) for i, asked in enumerate(every)}
    played: dict[int, Played] = {}
    while going:
        wanted: dict[int, tuple[ToPrice, int]] = {}
        for i, steps in [*going.items()]:
            try:
                wanted[i] = steps.send(played[i]) if i in played else next(steps)
            except StopIteration as end:
                found[i] = end.value
                del going[i]
        for limit in {limit for _, limit in wanted.values()}:
            some = {i: one for i, (one, own) in wanted.items() if own == limit}
            played |= zip(some, exchanges([*some.values()], limit), strict=True)
    return [found[i] for i in range(len(every))]


def _ranked(
    asked: Asked,
) -> Generator[tuple[ToPrice, int], Played, Priced]:
    """Ask for prices of exchanges; return seconds and names of methods, cheapest first.

    Methods are priced phase by phase, the method with the fewest priced phases first; expensive
    methods are left before their last phase.
    """
    methods, spec, machine, group = asked
    found: Priced = []
    few = group.size <= FEW
    going = [price_steps(method, spec, machine, group) for method in methods]
    heap = [(0.0, few, i) for i in range(len(methods))]
    rough = [few] * len(methods)  # whether a method's price so far contains a closed form
    while heap:
        seconds, whole, i = heappop(heap)
        if whole and len(found) > 1 and seconds > MARGIN * found[1][0]:
            break
        if whole:
            exact = price_steps(methods[i], spec, machine, group) if rough[i] else going[i]
            while (more := (yield from _more(exact, LIMIT))[0]) is not None:
                seconds = more.seconds
            insort(found, (seconds, methods[i].name))
            continue
        more, formula = yield from _more(going[i], 0)
        rough[i] |= formula
        heappush(heap, (seconds, True, i) if more is None else (more.seconds, False, i))
    return found


def _more(
    steps: Generator[Price | ToPrice, Played | None, None], limit: int
) -> Generator[tuple[ToPrice, int], Played, tuple[Price | None, bool]]:
    """Ask for exchanges until a price grows; return it, or None after the last.

    Also return whether the price contains a closed form.
    """
    one, formula = next(steps, None), False
    while isinstance(one, ToPrice):
        played = yield one, limit
        formula |= played.formula
        one = steps.send(played)
    return one, formula
