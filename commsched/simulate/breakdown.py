"""The parts of an exchange in the model: latency, bandwidth and coding."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from commsched.arrays import Floats
from commsched.cost import price
from commsched.cost.message_work import coding_of_a_rank
from commsched.cost.pattern import Places, once
from commsched.cost.play import moves_up_to
from commsched.cost.shared_ports import alongside
from commsched.exchange.method import Phase, resolved
from commsched.machine.model import Group, Link, Machine
from commsched.machine.relink import relinked
from commsched.plan.model import Plan
from commsched.program.model import Kind, Op
from commsched.program.parts import parts_of, seconds, values_of
from commsched.program.phases import phase_of

INSTANT = 1e300  # B/s


class Makeup(NamedTuple):
    """Seconds of an exchange whose ranks start together; they sum to its price."""

    latency: float  # of messages without bytes or coding: overhead, rounds, start-up
    bandwidth: float  # added by the bytes
    coded: float  # added by encoding, adding and decoding


def makeups(plan: Plan, ops: Iterable[Op]) -> dict[str, Makeup]:
    """Return the makeup of each exchange among operations, by name; choices count as expected."""
    known: dict[tuple[object, ...], Makeup] = {}
    found: dict[str, Makeup] = {}
    for op in ops:
        if op.name in found or op.kind not in (Kind.EXCHANGE, Kind.DECIDE):
            continue
        launch = plan.launches[op.launch] if op.launch >= 0 else None
        spec = None if launch is None else plan.spec(launch)
        who: tuple[object, ...] = ()
        if launch is not None:
            who = launch.method, launch.group, launch.among, launch.split
        key = (op.kind, op.phase, op.root, spec, who)
        if key not in known:
            known[key] = _makeup(plan, op)
        found[op.name] = known[key]
    return found


def processor_seconds(
    lasts: Floats, coded: float, own_coding: float, machine: Machine, busy: float
) -> Floats:
    """Return a rank's processor seconds of an exchange that lasts for `lasts` s: (n,) each.

    The rank codes for `own_coding` s of processor time. It sleeps until the exchange starts, and
    during the rest of the `coded` s, when others code. Otherwise it keeps `busy` cores busy.
    """
    return own_coding + busy * waiting_seconds(lasts, coded, machine)


def waiting_seconds(lasts: Floats, coded: Floats | float, machine: Machine) -> Floats:
    """Return for how long a rank's thread waits for messages in exchanges of `lasts` s: (n,)."""
    return np.maximum(lasts - coded - machine.startup, 0.0)


def coding_seconds(phase: Phase, machine: Machine, coded: float) -> float:
    """Return the processor time of a rank's coding in an exchange, s.

    For an exchange too large to count: the time that takes `coded` s if all ranks code at once.
    """
    schedule = phase.schedule
    if not coded:
        return 0.0
    if schedule.library or moves_up_to(schedule, price.LIMIT) > price.LIMIT:
        return coded * machine.alone
    return coding_of_a_rank(schedule, phase.payload, machine)


def message_makeup(machine: Machine, op: Op, rank: int, peer: int) -> Makeup:
    """Return the makeup of one end of a message between two ranks, without NIC sharing."""
    places = Places.of(machine, machine.everyone)
    both = np.array([rank, rank]), np.array([peer, peer])  # of an empty message, and of this one
    wire = replace(places.wire(*both), shared=0.0)
    empty, whole = wire.port(np.array([0.0, op.nbytes])).tolist()
    first = float(np.broadcast_to(wire.away, 2)[0])
    away = machine.startup + first if op.kind is Kind.RECV else 0.0
    return Makeup(away + empty, whole - empty, op.seconds)


def _makeup(plan: Plan, op: Op) -> Makeup:
    """Price an exchange three times: in full, without coding, and without bytes and coding."""
    machines = plan.machine, *once(plan.machine, plan.machine.everyone, _stripped)
    everyone = op.launch < 0
    group = plan.machine.everyone if everyone else plan.group(plan.launches[op.launch])
    if not everyone and plan.launches[op.launch].in_teams:
        full_machine, uncoded, empty = (alongside(machine, group) for machine in machines)
        machines = full_machine, uncoded, empty
    start = np.zeros(group.size)
    if op.kind is Kind.DECIDE:
        full, dry, least = (price.votes(m, group, start).end.max() for m in machines)
        if not everyone:
            numel = values_of(plan, op.launch)
            phase, device = resolved(phase_of(plan, op)), plan.machine.device
            full += seconds(parts_of(plan, op), phase, numel, device)
    else:
        phase = resolved(phase_of(plan, op))
        schedule, payload = phase.schedule, phase.payload
        # All three by the algorithm that the library takes on the machine as it is.
        taken = price.taken_by_library(schedule, payload, machines[0], group)
        full, dry, least = (
            price.exchange(schedule, payload, m, group, start, limit=0, taken=taken).end.max()
            for m in machines
        )
        if schedule.library:  # a run cannot tell MPI's additions from its transfers
            dry = full
    return Makeup(float(least), max(float(dry - least), 0.0), max(float(full - dry), 0.0))


def _stripped(machine: Machine, _: Group) -> tuple[Machine, Machine]:
    """Return a machine whose coding takes no time, and one whose bytes take none either."""
    uncoded = replace(machine, device=replace(machine.device, bandwidth=INSTANT, codecs={}))
    return uncoded, _without_bytes(uncoded)


def _without_bytes(machine: Machine) -> Machine:
    """Return a machine on which any message is as fast as one of no bytes."""
    first = price.measured(machine.native, 0.0) if machine.native else 0.0
    return replace(
        relinked(
            machine, inside=_empty, between=_empty, port=lambda nic: replace(nic, per_byte=0.0)
        ),
        native=((1.0, first), (1e18, first)) if machine.native else (),
    )


def _empty(link: Link) -> Link:
    points = ((0.0, float(link.wire(0.0))),) if link.points else ()
    return replace(link, per_byte=0.0, points=points)
