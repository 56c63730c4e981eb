"""The price of a method with a plug-in, and the check that sent bytes equal priced bytes."""

from collections.abc import Sequence

import numpy as np

from commsched.cost.price import price
from commsched.errors import CommschedError
from commsched.exchange.endpoint import open_endpoint
from commsched.exchange.lockstep import exchange, fresh_states
from commsched.exchange.method import Method, resolved
from commsched.exchange.registry import find_method
from commsched.lab.plug_in_laws.finding import require
from commsched.machine import file as machine_file
from commsched.machine.model import Group, Machine, resized
from commsched.net.bucket import BucketSpec
from commsched.units import nbytes, seconds

NUMEL = 25_000_000
RIVALS = ("native+dense", "ring+dense")
MACHINE = "p3.16xlarge"


def machines(name: str, sizes: Sequence[int]) -> list[Machine]:
    """Return a shipped machine for each number of ranks."""
    return sized(machine_file.load(name), sizes)


def sized(known: Machine, sizes: Sequence[int]) -> list[Machine]:
    """Return a machine for each number of ranks: full nodes, or a single node."""
    lanes = known.everyone.lanes
    for size in sizes:
        if size > lanes and size % lanes:
            near = size - size % lanes
            raise CommschedError(
                f"--ranks {size}: {known.name} has {lanes} ranks on each node; take {near} or"
                f" {near + lanes}"
            )
    return [resized(known, max(1, size // lanes), min(size, lanes)) for size in sizes]


def as_sent(method: Method, groups: Sequence[Group], numel: int) -> str:
    """Compare priced bytes with those that ranks in one process send, up to rounding of the sum."""
    rng, known = np.random.default_rng(2), machine_file.load(MACHINE)
    for group in groups:
        spec = BucketSpec.uniform(numel)
        gradients = [rng.standard_normal(numel).astype(np.float32) for _ in group.ranks]
        states, sent = fresh_states(gradients), 0
        for phase in method.phases(spec, group):
            found = resolved(phase)
            held = [open_endpoint(found, state) for state in states]
            sent += exchange(found.schedule, held)
        on = resized(known, len(group.members), group.lanes)
        priced = price(method, spec, on, group).sent * group.size
        require(
            abs(priced - sent) <= 1e-9 * sent,
            f"{method.name} on {group.size} ranks sends {sent} B, but {priced:.10g} B are priced",
        )
    return f"{method.name} sends what is priced"


def compared(name: str, machine: Machine) -> str:
    """Return a sentence with the prices of a method and of the usual methods."""
    spec = BucketSpec.uniform(NUMEL)
    times = {
        each: price(find_method(each), spec, machine, machine.everyone).seconds
        for each in dict.fromkeys((name, *RIVALS))
    }
    for each, time in times.items():
        require(np.isfinite(time) and time >= 0, f"{each} is priced at {time} s")
    rivals = ", ".join(f"{each} {seconds(time)}" for each, time in times.items() if each != name)
    size = f"{nbytes(4.0 * NUMEL)} on {machine.nodes} x {machine.everyone.lanes} of {machine.name}"
    return f"{seconds(times[name])} for {size}; {rivals}"
