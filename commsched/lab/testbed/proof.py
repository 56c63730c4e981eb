"""The check that a job's bytes crossed the shaped ports: expected bytes against counters."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from commsched.arrays import Floats, Ints
from commsched.exchange.method import Phase, resolved
from commsched.lab.testbed.network import Traffic
from commsched.lab.testbed.spec import Spec
from commsched.plan.model import Plan
from commsched.program.model import Kind
from commsched.program.phases import phase_of
from commsched.program.registry import STRATEGIES
from commsched.timeline.model import Timeline
from commsched.units import nbytes

# Retransmissions and header options make the count of data inexact; measured: 0.1 %.
TOLERANCE = 0.02


class Crossing(NamedTuple):
    """Least bytes of data that one host must have sent to, and received from, other hosts."""

    sent: float
    received: float


def missing(
    expected: Sequence[Crossing], counted: Sequence[Traffic], hosts: Sequence[str]
) -> list[str]:
    """Return a sentence for each host and direction with fewer bytes than expected."""
    sentences = []
    for host, least, traffic in zip(hosts, expected, counted, strict=True):
        for word, wanted, seen in (
            ("sent", least.sent, traffic.data_sent),
            ("received", least.received, traffic.data_received),
        ):
            if seen < wanted * (1 - TOLERANCE):
                sentences.append(
                    f"host {host} {word} {nbytes(seen)} over its shaped port, expected were"
                    f" {nbytes(wanted)}: the rest went around the port"
                )
    return sentences


def stated(least: float, hosts: int, used: int) -> tuple[Crossing, ...]:
    """Expect `least` bytes from each of the first `used` hosts, and 0 from the others."""
    return tuple(Crossing(least, least) if i < used else Crossing(0.0, 0.0) for i in range(hosts))


def crossing(plan: Plan, measured: Timeline, spec: Spec) -> tuple[Crossing, ...]:
    """Return the bytes that each host must have moved according to a run's timeline.

    The timeline has the bytes that each rank passed to MPI for each exchange; the schedule gives
    the share of them between each pair of hosts. MPI's own all-reduce has no schedule, but every
    host must send and receive each element, or a partial sum, at least once.
    """
    place = _places(measured, spec)
    moved = np.zeros((len(measured.names), measured.ranks))  # B per operation and sending rank
    np.add.at(moved, (measured.name, measured.rank), measured.nbytes)
    between = np.zeros((spec.hosts, spec.hosts))
    own = np.zeros(spec.hosts)
    for name, (launch, phase) in _phases(plan, measured).items():
        if name not in measured.names:
            continue
        for ranks in plan.teams(plan.launches[launch]):
            number = measured.names.index(name)
            where, sizes = place[ranks], moved[number][ranks]
            if not phase.schedule.library:
                between += _between(phase, where, sizes, spec.hosts)
            elif len(hosts := np.unique(where)) > 1:
                steps = len(np.unique(measured.step[measured.name == number]))
                own[hosts] += steps * 4.0 * plan.spec(plan.launches[launch]).numel
    np.fill_diagonal(between, 0.0)
    sent, received = between.sum(axis=1) + own, between.sum(axis=0) + own
    return tuple(Crossing(float(s), float(r)) for s, r in zip(sent, received, strict=True))


def _places(measured: Timeline, spec: Spec) -> Ints:
    """Return the number of each rank's host, (ranks,), as recorded by the run.

    If the run used fewer hosts than it should have, return the requested placement.
    """
    asked = np.arange(measured.ranks) // spec.lanes % spec.hosts
    seen = measured.run.hosts
    if seen is None or len(seen) != measured.ranks or not set(seen) <= {*spec.names}:
        return asked
    if len(set(seen)) < len(set(asked)):
        return asked
    return np.array([spec.names.index(host) for host in seen])


def _between(phase: Phase, where: Ints, sizes: Floats, hosts: int) -> Floats:
    """Return the B of one operation from host to host, (hosts, hosts), by each member's moves.

    where: (members,) number of each member's host; sizes: (members,) B that it sent.
    """
    planned = np.zeros((len(where), hosts))
    for rnd in phase.schedule.rounds():
        wire = phase.payload.wire(rnd.first, rnd.stop, rnd.merged)
        np.add.at(planned, (rnd.src, where[rnd.dst]), wire)
    total = planned.sum(axis=1, keepdims=True)
    share = np.divide(planned, total, out=np.zeros_like(planned), where=total > 0)
    traffic = np.zeros((hosts, hosts))
    np.add.at(traffic, where, share * sizes[:, None])
    return traffic


def _phases(plan: Plan, measured: Timeline) -> Mapping[str, tuple[int, Phase]]:
    """Return the launch and the phase of every exchange of the plan, by the operation's name."""
    decisions = measured.decisions
    found = {}
    lower = STRATEGIES[plan.strategy].lower
    roles = [r for s in np.unique(measured.step) for r in lower(plan, int(s), decisions).roles]
    for ops in dict.fromkeys(role.ops for role in roles):
        for op in ops:
            if op.kind is Kind.EXCHANGE:
                found[op.name] = op.launch, resolved(phase_of(plan, op))
    return found
