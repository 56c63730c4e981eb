"""Estimates of a command's time and memory; a command that needs too much is refused.

Rates were measured by `bench simulator` and `bench codecs` on two cores of an Intel Xeon, 2026-11:
they are right within a factor of about three, which is enough to refuse a command.
"""

import argparse
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from commsched.cli.options import Flag
from commsched.errors import CommschedError
from commsched.units import nbytes, seconds

if TYPE_CHECKING:
    from commsched.exchange.method import Method
    from commsched.machine.model import Machine
    from commsched.plan.model import Plan
    from commsched.planner.request import Request
    from commsched.train.layers.layer import TrainableNet

MOST_SECONDS, MOST_BYTES = 3600.0, 16e9
COUNTABLE = 10**18  # larger counts are cut to this one: a huge integer fits in no float
FORCE_SIZE = Flag("--force-size", "also begin work that should take more than 1 h or 16 GB")

PLACED, PLACED_RANK = 150e-6, 0.12e-6  # s to place an operation, and for each of its ranks
KEPT = 32.0  # B for each rank of an operation, or pipeline turn, that is placed at once
WRITTEN, WRITTEN_BYTES = 10e-6, 400.0  # s and B of memory of a span that is written
PLAYED = 45e-9  # s for each message of a schedule that has no formula
PRICED, PRICED_BYTES = 0.2e-6, 2000.0  # s for each rank of a method; B for each rank
SEARCHED, SEARCHED_BYTES = 10e-6, 220.0  # s and B for each rank and tensor
RATES = 20  # number of rates for which a break-even plans
COUNTED = 2**14  # ranks of the largest machine on which messages are counted
QUICK = 1e7  # fewer messages are not worth counting
NUMEL = 2**24  # elements of a bucket whose messages are counted
CODED, CODED_BYTES = 120e-9, 24.0  # per element: s of a repeat, B of memory


class Size(NamedTuple):
    """The estimated size of a piece of work: s on one core, B of memory."""

    seconds: float
    nbytes: float


def simulation(plan: "Plan", steps: int, written: int) -> Size:
    """Estimate a simulation whose timeline has the spans of some ranks."""
    from commsched.program.registry import STRATEGIES
    from commsched.simulate.pipelines import placed_at_once

    ranks = plan.machine.size
    roles = STRATEGIES[plan.strategy].lower(plan, 0, {}).roles
    steps = min(steps, COUNTABLE)
    placed = steps * sum(len(role.ops) for role in roles)
    kept = steps * sum(placed_at_once(roles)) * ranks / len(roles)
    spans = steps * max(len(role.ops) for role in roles) * min(written, ranks)
    return Size(
        placed * PLACED + kept * PLACED_RANK + WRITTEN * spans,
        KEPT * kept + WRITTEN_BYTES * spans,
    )


def run(plan: "Plan", steps: int) -> Size:
    """Estimate a run: at least its compute; no memory, since spans are written while it runs."""
    return Size(min(steps, COUNTABLE) * max(plan.iteration, _computing(plan)), 0.0)


def training(plan: "Plan", steps: int) -> Size:
    """Estimate a training by its compute alone, since real links may be faster than the plan's.

    The memory is that of a node's ranks.
    """
    from commsched.planner.limits.memory import needed

    lanes = max(map(len, plan.machine.everyone.members))
    return Size(min(steps, COUNTABLE) * _computing(plan), needed(plan) * lanes)


def profile(net: "TrainableNet") -> Size:
    """Estimate the memory to measure a net: its float32 parameters and their gradients."""
    return Size(0.0, 8.0 * sum(math.prod(start.shape) for start in net.tensors.values()))


def pricing(machine: "Machine", methods: "Iterable[Method]", times: int = 1) -> Size:
    """Estimate the pricing of methods; schedules without a formula are played by message."""
    asked, ranks = list(methods), machine.size
    played = 0.0
    if times * ranks**2 > QUICK:
        played = times * _messages(machine, asked)
    return Size(PLAYED * played + PRICED * times * len(asked) * ranks, PRICED_BYTES * ranks)


def planning(request: "Request", times: int = 1) -> Size:
    """Estimate the search for a plan: all methods are priced, then buckets placed."""
    from commsched.program.registry import STRATEGIES

    machine, tensors = request.machine, len(request.net.tensors)
    found = Size(0.0, 0.0)
    if STRATEGIES[request.strategy].sums_every_step:
        found = pricing(machine, request.methods(machine.everyone), times)
    return Size(
        found.seconds + times * SEARCHED * machine.size * tensors,
        found.nbytes + SEARCHED_BYTES * machine.size * tensors,
    )


def _messages(machine: "Machine", methods: "list[Method]") -> float:
    """Count the messages to play, or extrapolate from the counts on two smaller machines."""
    halvings = max(0, (machine.size - 1).bit_length() - COUNTED.bit_length() + 1)
    most = float(sum(_played(method, _smaller(machine, halvings)) for method in methods))
    if halvings == 0 or not most:
        return most
    many, few = (_smaller(machine, halvings + more) for more in (0, 2))
    less = max(1.0, sum(_played(method, few) for method in methods))
    power = math.log(most / less) / math.log(many.size / few.size)
    return most * math.pow(machine.size / many.size, power)


def _smaller(machine: "Machine", halvings: int) -> "Machine":
    """Halve a machine: first the number of nodes, then the number of ranks per node."""
    from commsched.machine.model import resized

    if halvings == 0:
        return machine
    of_nodes = min(halvings, max(0, machine.nodes.bit_length() - 2))
    return resized(
        machine,
        _halved(machine.nodes, of_nodes),
        _halved(machine.everyone.lanes, halvings - of_nodes),
    )


def _halved(count: int, times: int) -> int:
    """Halve a number; keep it a power of two or keep it none, which decides on schedules."""
    if count & (count - 1):
        return max(3, count >> times | 1) if times > 0 else count
    return max(1, count >> max(times, 0))


def _played(method: "Method", machine: "Machine") -> int:
    """Count the messages of a method's schedules without a formula."""
    from commsched.cost.closed import FORMS
    from commsched.cost.play import moves_up_to
    from commsched.exchange.method import resolved
    from commsched.net.bucket import BucketSpec

    group = machine.everyone
    phases = method.phases(method.seen(BucketSpec.uniform(NUMEL), group), group)
    schedules = [resolved(phase).schedule for phase in phases]
    own = [s for s in schedules if not s.library and s.name not in FORMS]
    return sum(moves_up_to(schedule, COUNTABLE) for schedule in own)


def _computing(plan: "Plan") -> float:
    net, device = plan.net, plan.machine.device
    return sum(sum(net.seconds(layer, device)) for layer in net.layers)


def coding(numel: int, repeats: int, codecs: int) -> Size:
    """Estimate the measurement of codecs, one after the other."""
    numel, repeats = min(numel, COUNTABLE), min(repeats, COUNTABLE)
    return Size(CODED * numel * repeats * codecs, CODED_BYTES * numel)


def check(args: argparse.Namespace, what: str, size: Size) -> None:
    """Refuse what takes too much, unless --force-size is given."""
    if args.force_size or (size.seconds <= MOST_SECONDS and size.nbytes <= MOST_BYTES):
        return
    hours = f"{size.seconds / 3600:.3g} h"
    time = hours if size.seconds > MOST_SECONDS else seconds(size.seconds)
    told = [time] * (size.seconds > 0) + [f"{nbytes(size.nbytes)} of memory"] * (size.nbytes > 0)
    raise CommschedError(
        f"{what} would take about {' and '.join(told)}; more than 1 h or"
        f" {nbytes(MOST_BYTES)} needs --force-size"
    )
