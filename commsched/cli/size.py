"""What a command will take: refused before it begins if that is more than a machine or a day has.

Rates were measured by `bench simulator` and `bench codecs` on two cores of an Intel Xeon, 2026-11:
they are right within a factor of about three, which is enough for the question.
"""

import argparse
from typing import TYPE_CHECKING, NamedTuple

from commsched.cli.options import Flag
from commsched.errors import CommschedError
from commsched.units import nbytes, seconds

if TYPE_CHECKING:
    from commsched.plan.model import Plan

MOST_SECONDS, MOST_BYTES = 3600.0, 16e9
COUNTABLE = 10**18  # a larger number is as good as this one, and no float
FORCE_SIZE = Flag("--force-size", "begin even what is estimated to take more than 1 h or 16 GB")

PLACED, PLACED_RANK = 150e-6, 0.12e-6  # s to place an operation, and of each rank that has it
KEPT = 32.0  # B of a placed operation and rank
WRITTEN, WRITTEN_BYTES = 10e-6, 400.0  # s and B of memory of a span that is written
CODED, CODED_BYTES = 120e-9, 24.0  # s of a repeat and B of memory of an element that is coded


class Size(NamedTuple):
    """What work takes: s on one core, B of memory."""

    seconds: float
    nbytes: float


def simulation(plan: "Plan", steps: int, written: int) -> Size:
    """Estimate a simulation whose timeline has the spans of some ranks."""
    from commsched.program.registry import STRATEGIES

    ranks = plan.machine.size
    roles = STRATEGIES[plan.strategy].lower(plan, 0, {}).roles
    steps = min(steps, COUNTABLE)
    placed = steps * sum(len(role.ops) for role in roles)
    spans = steps * max(len(role.ops) for role in roles) * min(written, ranks)
    return Size(
        placed * (PLACED + PLACED_RANK * ranks / len(roles)) + WRITTEN * spans,
        KEPT * placed * ranks / len(roles) + WRITTEN_BYTES * spans,
    )


def run(plan: "Plan", steps: int) -> Size:
    """Estimate a run: its spans leave the memory while it runs."""
    return Size(min(steps, COUNTABLE) * (plan.iteration or _computing(plan)), 0.0)


def training(plan: "Plan", steps: int) -> Size:
    """Estimate a training: at least its computing; the plan's links may be slower than the real."""
    return Size(min(steps, COUNTABLE) * _computing(plan), 0.0)


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
    memory = f" and {nbytes(size.nbytes)} of memory" if size.nbytes else ""
    raise CommschedError(
        f"{what} would take about {seconds(size.seconds)}{memory}; more than 1 h or"
        f" {nbytes(MOST_BYTES)} needs --force-size"
    )
