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
SHARE = 0.5  # of its bucket that a method's packets take at most, before only the least do
NEAR = 1.001  # times the iteration of the plan without a limit: then the search is over
NOTHING = 1.0  # B, which no plan fits into
SAME = 1e-12  # relative: a limit in GB is rounded


def fitting(request: Request, planner: Planner) -> Plan:
    """The plan of a request if it fits `request.memory`, else the best of narrower ones that do.

    Narrower are methods that keep nothing from step to step, of these such with small packets, and
    buckets of at most a part of the net. With each set of methods the largest buckets that fit
    count; the shortest iteration is taken. An error names the least limit where none fits.
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
    """The plan of a strategy's frame; with narrower methods only if it does not fit otherwise.

    Last without any loss, since lossy codecs keep what they have not sent, and then all again as if
    nothing fitted: a frame may plan a part alone, for which its limit is no limit. If no plan fits,
    the one that needs least.
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
    """Whether every rank has room for a plan."""
    assert request.memory is not None
    return needed(plan) <= request.memory * (1 + SAME)


def refusal(request: Request, plan: Plan) -> CommschedError:
    """Why a plan is too large, and the limit under which it is not."""
    assert request.memory is not None
    memory = STRATEGIES[plan.strategy].memory(plan)
    parts = ", ".join(f"{name} {nbytes(size)}" for name, size in memory._asdict().items())
    return CommschedError(
        f"a memory limit of {nbytes(request.memory)} per rank cannot hold: strategy"
        f" {plan.strategy!r} needs {nbytes(memory.total)} ({parts}); nearest:"
        f" {enough(memory.total)}"
    )


def enough(size: float) -> str:
    """Write a limit of whole bytes that `size` bytes fit into, as options read it."""
    return f"a limit of {math.ceil(size) / 1e9:.15g}GB"


def needed(plan: Plan) -> float:
    """Bytes on the rank that needs most."""
    return STRATEGIES[plan.strategy].memory(plan).total


def _sizes(request: Request) -> list[float | None]:
    """Limits of buckets, from none to one that every tensor exceeds."""
    if request.bucket is not None:
        return [request.bucket]
    total = 4.0 * request.net.numel
    return [None, *(total / count for count in PARTS), 1.0]


def method_sets(request: Request) -> Iterator[frozenset[str]]:
    """Methods to do without: none, those that keep something, those of large packets, of most.

    Where all keep something, packets alone decide.
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
