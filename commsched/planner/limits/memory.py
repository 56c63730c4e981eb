"""Plans within a memory limit per rank: smaller buckets, and methods that take less room."""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from commsched.errors import CommschedError
from commsched.exchange.memory import LaunchMemory, launch_memory
from commsched.exchange.method import Method
from commsched.net.bucket import BucketSpec
from commsched.plan.model import Plan
from commsched.planner.deadline import Deadline
from commsched.planner.registry import Planner
from commsched.planner.request import Request
from commsched.program.registry import STRATEGIES
from commsched.units import nbytes

# A bucket is at most 1/PARTS of the net; the last attempt gives each tensor a bucket.
PARTS = (4, 16, 64)
SHARE = 0.5  # a method with small packets: they take at most this share of their bucket
NEAR = 1.001  # the search ends within this factor of the iteration without a limit
NOTHING = 1.0  # B, which no plan fits into
SAME = 1e-12  # relative: a limit in GB is rounded


def fitting(request: Request, planner: Planner) -> Plan:
    """Return the plan of a request if it fits `request.memory`, else the best restricted plan.

    Restricted plans use only methods that keep nothing from step to step, then only those with
    small packets, and buckets of at most a part of the net. Each set of methods gets the largest
    buckets that fit; the plan with the shortest iteration is returned. If none fits, an error names
    the least limit.
    """
    end, first = Deadline(request.time_limit), planner(replace(request, memory=None))
    if fits(request, first):
        return first
    *sets, least = dict.fromkeys(method_sets(request))
    smallest = planner(replace(request, without=least, bucket=_sizes(request)[-1]))
    if not fits(request, smallest):
        raise refusal(request, smallest)
    found: list[Plan] = []
    for without in (*sets, least):
        for size in _sizes(request):
            left = None if request.time_limit is None else max(end.left(), 0.0)
            plan = planner(replace(request, without=without, bucket=size, time_limit=left))
            if fits(request, plan):
                found.append(plan)
                break
        if found and found[-1].iteration <= first.iteration * NEAR:
            break
    return min([*found, smallest], key=lambda plan: plan.iteration)


def framed(request: Request, frame: Planner) -> Plan:
    """Return the plan of a strategy's frame, with fewer and fewer methods until it fits.

    First without methods that keep state or need large packets, then without lossy codecs, since
    these keep what they have not sent, then all of this again under a limit of NOTHING: a frame may
    plan only a part of the net, which alone would fit. If no plan fits, the smallest is returned.
    """
    end, found = Deadline(request.time_limit), [frame(request)]
    if request.memory is None or fits(request, found[0]):
        return found[0]
    sets = [*dict.fromkeys(method_sets(request))]
    narrower = [*(replace(request, without=some) for some in sets[1:]), replace(request, lossy=())]
    for wanted in (*narrower, *(replace(one, memory=NOTHING) for one in (request, *narrower))):
        with suppress(CommschedError):  # the strategy cannot do with these methods alone
            left = None if request.time_limit is None else max(end.left(), 0.0)
            found.append(frame(replace(wanted, time_limit=left)))
            if fits(request, found[-1]):
                return found[-1]
    return min(found, key=needed)


def fits(request: Request, plan: Plan) -> bool:
    """Tell whether every rank has room for a plan."""
    assert request.memory is not None
    return needed(plan) <= request.memory * (1 + SAME)


def refusal(request: Request, plan: Plan) -> CommschedError:
    """Return an error that says why a plan is too large, and under which limit it fits."""
    assert request.memory is not None
    memory = STRATEGIES[plan.strategy].memory(plan)
    parts = ", ".join(f"{name} {nbytes(size)}" for name, size in memory._asdict().items())
    return CommschedError(
        f"a memory limit of {nbytes(request.memory)} per rank cannot hold: strategy"
        f" {plan.strategy!r} needs {nbytes(memory.total)} ({parts}); nearest:"
        f" {enough(memory.total)}"
    )


def enough(size: float) -> str:
    """Write the least limit, in whole bytes, that holds `size` bytes, as options read it."""
    return f"a limit of {math.ceil(size) / 1e9:.15g}GB"


def needed(plan: Plan) -> float:
    """Return the bytes of a plan on the rank that needs most."""
    return STRATEGIES[plan.strategy].memory(plan).total


def _sizes(request: Request) -> list[float | None]:
    """List limits of buckets, from no limit to one that every tensor exceeds."""
    if request.bucket is not None:
        return [request.bucket]
    total = 4.0 * request.net.numel
    return [None, *(total / count for count in PARTS), 1.0]


def method_sets(request: Request) -> Iterator[frozenset[str]]:
    """Yield sets of methods to exclude, each larger than the last.

    No methods; those that keep state between steps; those with large packets; all but those with
    the smallest packets. If all methods keep state, packets alone decide.
    """
    spec = BucketSpec.uniform(max(request.net.numel, 1))
    group = request.machine.everyone

    def of(method: Method) -> LaunchMemory:
        return launch_memory(method.name, spec, group)

    found = {method.name: of(method) for method in request.methods(group)}
    frugal = {name: one for name, one in found.items() if not one.alone} or found
    packets = {name: one.waiting + one.received for name, one in frugal.items()}
    least = min(packets.values(), default=0.0)
    yield request.without
    for limit in (math.inf, max(least, SHARE * 4.0 * spec.numel), least):
        kept = {name for name, size in packets.items() if size <= limit}
        yield request.without | (found.keys() - kept)
