"""The costs of a plan's exchanges, given when each rank begins; equal ones are played once."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from commsched.arrays import Floats, Ints
from commsched.cost.chain import messages_of_a_rank, seconds_of_waking
from commsched.exchange.method import Phase
from commsched.exchange.registry import method_at
from commsched.exchange.vote import voting
from commsched.machine.model import Link, Machine
from commsched.plan.model import Plan
from commsched.program.model import Kind, Op
from commsched.program.phases import decided_phase
from commsched.simulate.breakdown import coding_seconds, makeups, processor_seconds
from commsched.simulate.team_exchange import (
    Exchanged,
    ExchangeTeams,
    content_of,
    exchanged,
    machine_of,
)

GRAIN = 1 / 16  # cores: demands of exchanges that differ less count as equal
TINY = 1e-12  # s
SAME = 1e-11  # s: starts that differ less count as equal when an exchange is looked up

# An exchange and how its ranks start one after the other -> its costs, from the first start on.
Known = dict[tuple[object, ...], Exchanged]


class OwnWork(NamedTuple):
    """A rank's own work in an exchange besides messages, s."""

    coded: float  # to encode, add and decode at its hops one after the other, and to sum pieces
    own_coding: float  # processor time for what it codes itself
    within: float  # to sum pieces
    late: float  # to wait for a core with each message, if the cores are busy all the while
    handled: float  # processor time to send and to receive messages


class ExchangeCosts:
    """Seconds and bytes of exchanges, and what they take of the cores, for all placements."""

    def __init__(
        self,
        plan: Plan,
        decisions: Mapping[str, float],
        limit: int,
        known: Known | None,
    ) -> None:
        self.plan = plan
        self._decisions = decisions
        self._limit = limit
        self._known = known
        self._own: dict[tuple[object, ...], OwnWork] = {}
        self._of_team: dict[object, Exchanged] = {}  # of one team, where several are alike

    def phase(self, op: Op, step: int) -> Phase:
        """Return the phase of an exchange, as decided or expected."""
        return decided_phase(self.plan, op, step, self._decisions)

    def method(self, op: Op, step: int) -> str:
        """Return a key that is equal in all steps in which an operation has equal phases."""
        if self._decisions or op.launch < 0:
            return str(step)
        return method_at(self.plan.launches[op.launch].method, step).name

    def own(self, op: Op, step: int, teams: ExchangeTeams) -> OwnWork:
        """Return what an exchange takes of each rank beside messages."""
        key = id(self.plan), op.name, self.method(op, step)
        if key not in self._own:
            self._own[key] = self._own_work(op, step, teams)
        return self._own[key]

    def _own_work(self, op: Op, step: int, teams: ExchangeTeams) -> OwnWork:
        machine = self.plan.machine
        coded = makeups(self.plan, [op])[op.name].coded if machine.cores else 0.0
        votes = op.kind is Kind.DECIDE
        phase = voting(teams.first, lambda _: 0.0) if votes else self.phase(op, step)
        within = 0.0 if votes else phase.within_seconds(machine.device)
        coding = coded * machine.alone if votes else coding_seconds(phase, machine, coded)
        what = phase.schedule, phase.payload, machine, teams.first
        late = seconds_of_waking(*what)
        handled = machine.message and machine.message * messages_of_a_rank(*what)
        return OwnWork(coded + within, coding + within * machine.alone, within, late, handled)

    def work(self, own: OwnWork, teams: ExchangeTeams, seconds: Floats) -> Floats:
        """Return the s of a rank's share of the cores that an exchange of `seconds` s needs.

        Its thread polls as long as the exchange lasts. (ranks,)
        """
        machine = self.plan.machine
        if not machine.cores:
            return np.zeros_like(seconds)
        busy = self.link(teams).busy
        work = processor_seconds(seconds, own.coded, own.own_coding, machine, busy)
        return np.where(seconds > 0.0, work / machine.alone, 0.0)

    def link(self, teams: ExchangeTeams) -> Link:
        """Return the link class of an exchange."""
        machine = self.plan.machine
        apart = len(set(np.array(machine.node_of_rank)[teams.ranks[0]].tolist())) > 1
        return machine.between if apart else machine.inside

    def interrupts(self, teams: ExchangeTeams, sent: float, lasts: Floats) -> float:
        """Return the cores that an exchange's packets take of each rank, which sends `sent` B.

        As many as its link says if they fill its share of the port all the while.
        """
        link = self.link(teams)
        if not link.interrupts:
            return 0.0
        filled = port_seconds(self.plan.machine, link, teams.ranks, sent)
        return link.interrupts * min(filled / max(float(lasts.mean()), TINY), 1.0)

    def played(
        self, op: Op, step: int, teams: ExchangeTeams, start: Floats, rest: Floats
    ) -> Exchanged:
        """Return what an exchange costs; equal exchanges are played once.

        start, rest: (teams, members) s, when each begins and for how long its port has been idle.
        """
        machine = machine_of(self.plan, op.launch)
        rest = np.minimum(rest, machine.burst)
        what: tuple[object, ...] = ()
        if self.plan.launches and not self._decisions:
            launch, content = self.plan.launches[op.launch], content_of(self.plan, op.launch)
            who = op.team, op.root, launch.among, launch.group, launch.split
            method = method_at(launch.method, step).name
            what = method, content, op.phase, op.kind, self._limit, *who
        if self._known is not None:
            first = start.min()
            apart = np.rint(np.stack([start - first, rest]) / SAME).astype(np.int64).tobytes()
            key = what, apart
            if key in self._known:
                found = self._known[key]
                # The known exchange has starts that differ by less than SAME.
                return found._replace(end=np.maximum(first + found.end, start))
        phase = None if op.kind is Kind.DECIDE else self.phase(op, step)
        of_team = (self._of_team, what) if what else None
        found = exchanged(machine, phase, teams, start, rest, self._limit, of_team)
        if self._known is not None:
            self._known[key] = found._replace(end=found.end - first)
        return found


def port_seconds(machine: Machine, link: Link, ranks: Ints, sent: float) -> float:
    """Return for how long ranks that send `sent` B each fill their parts of the ports, s."""
    per_byte = link.per_byte
    if machine.nic is not None:
        of_a_node = np.bincount(np.array(machine.node_of_rank)[ranks.ravel()]).max()
        per_byte = max(per_byte, machine.nic.per_byte * of_a_node / machine.nic.per_node)
    return sent * per_byte
