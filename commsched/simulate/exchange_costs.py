"""What a plan's exchanges cost as each rank begins them; equal ones are played once."""

from collections.abc import Mapping

import numpy as np

from commsched.arrays import Floats
from commsched.cost.chain import messages_in_turn
from commsched.exchange.method import Phase
from commsched.exchange.registry import method_at
from commsched.exchange.vote import voting
from commsched.plan.model import Plan
from commsched.program.model import Kind, Op
from commsched.program.phases import decided_phase
from commsched.simulate.breakdown import makeups, processor_seconds
from commsched.simulate.team_exchange import (
    Exchanged,
    ExchangeTeams,
    content_of,
    exchanged,
    machine_of,
)

GRAIN = 1 / 16  # cores: demands of exchanges that differ less count as equal
SAME = 1e-11  # s: starts that differ less count as equal when an exchange is looked up

# An exchange and how its ranks start one after the other -> ends from the first start on, B sent.
Known = dict[tuple[object, ...], tuple[Floats, Floats]]


class ExchangeCosts:
    """Seconds and bytes of exchanges, and what they take of the cores."""

    def __init__(
        self,
        plan: Plan,
        decisions: Mapping[str, float],
        limit: int,
        known: Known | None,
        coded: dict[tuple[int, str], float],
    ) -> None:
        self.plan = plan
        self._decisions = decisions
        self._limit = limit
        self._known = known
        self._coded = coded  # s, of an exchange's coding, by plan and operation
        self._of_team: dict[object, Exchanged] = {}  # of one team, where several are alike

    def phase(self, op: Op, step: int) -> Phase:
        """Return the phase of an exchange, as decided or expected."""
        return decided_phase(self.plan, op, step, self._decisions)

    def late(self, op: Op, step: int, teams: ExchangeTeams) -> float:
        """Return how much longer an exchange lasts on ranks whose cores are busy all the while, s.

        Each message of its longest chain waits until the thread that receives it has a core.
        """
        machine = self.plan.machine
        if not machine.wakeup:
            return 0.0
        phase = voting(teams.first, lambda _: 0.0) if op.kind is Kind.DECIDE else None
        phase = phase or self.phase(op, step)
        schedule, payload = phase.schedule, phase.payload
        return machine.wakeup * messages_in_turn(schedule, payload, machine, teams.first)

    def work(
        self,
        op: Op,
        teams: ExchangeTeams,
        within: float,
        dispatch: Floats,
        seconds: Floats,
    ) -> Floats:
        """Return for how long an exchange of some seconds needs a rank's share of the cores, s.

        within: those of its seconds in which it sums pieces. dispatch: seconds of processor time
        that its own thread takes besides; it polls as long as the exchange lasts. (ranks,) each.
        """
        machine = self.plan.machine
        apart = len(set(np.array(machine.node_of_rank)[teams.ranks[0]].tolist())) > 1
        busy = (machine.between if apart else machine.inside).busy
        if not machine.cores:
            return np.zeros_like(seconds)
        key = id(self.plan), op.name
        if key not in self._coded:
            self._coded[key] = makeups(self.plan, [op])[op.name].coded
        work = processor_seconds(seconds, self._coded[key] + within, machine, busy) + dispatch
        return np.where(seconds > 0.0, work / machine.alone, 0.0)

    def played(
        self, op: Op, step: int, teams: ExchangeTeams, start: Floats, rest: Floats
    ) -> Exchanged:
        """Return an exchange's end and bytes; equal exchanges are played once.

        start, rest: (teams, members) s, when each begins and for how long its port has been idle.
        """
        machine = machine_of(self.plan, op.launch)
        rest = np.minimum(rest, machine.burst)
        what: tuple[object, ...] = ()
        if self.plan.launches and not self._decisions:
            launch, content = self.plan.launches[op.launch], content_of(self.plan, op.launch)
            method, who = method_at(launch.method, step).name, (op.team, op.root, launch.among)
            what = method, content, op.phase, op.kind, self._limit, *who, launch.split
        if self._known is not None:
            first = start.min()
            apart = np.rint(np.stack([start - first, rest]) / SAME).astype(np.int64).tobytes()
            key = what, apart
            if key in self._known:
                after, sent = self._known[key]
                return Exchanged(first + after, sent)
        phase = None if op.kind is Kind.DECIDE else self.phase(op, step)
        of_team = (self._of_team, (launch.group, *what)) if what else None
        found = exchanged(machine, phase, teams, start, rest, self._limit, of_team)
        if self._known is not None:
            self._known[key] = found.end - first, found.sent
        return found
