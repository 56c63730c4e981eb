"""The processor time of exchanges besides coding, fitted to measured processor time."""

from dataclasses import replace

import numpy as np

from commsched.arrays import Floats
from commsched.calibrate.cell_times import TINY, CellTimes, kinds_of
from commsched.cost.chain import handling_seconds, messages_of_a_rank, seconds_of_waking
from commsched.cost.least_squares import least_squares
from commsched.exchange.method import resolved
from commsched.exchange.registry import phases_of
from commsched.machine.model import Link, Machine
from commsched.machine.relink import relinked
from commsched.plan.model import Plan
from commsched.program.model import Kind
from commsched.program.parts import HANDOVERS
from commsched.simulate.breakdown import coding_seconds, makeups, waiting_seconds
from commsched.simulate.engine import simulate
from commsched.simulate.exchange_costs import port_seconds

# s of a core per exchange and per message, and the share of a core while an exchange waits: the
# start of the search, and the expected error of each logarithm.
START, DOUBT = np.array([3e-4, 3e-5, 0.2]), np.full(3, 5.0)
ROUNDS = 60  # rounds of the search, whose errors are fast to compute


class ProcessorCosts:
    """The processor time that a calibration's exchanges take of a rank's cores.

    An exchange takes

        dispatch + message * messages + busy * seconds of waiting + its own coding and hand-overs

    and `cold` more on a rank that computes, where coding takes longer by as much. The messages of
    an exchange take at most the rank's part of the cores while it lasts. An exchange waits for
    messages as long as if no rank computed, and for wake-ups if ranks compute; the wait for a core
    to code on takes no processor time.
    """

    def __init__(self, plan: Plan, measured: CellTimes, idle: CellTimes) -> None:
        """Note the times of the plan's cells; idle: the times measured while no rank computed.

        Costs are for the plan: if its ranks compute, polling on an otherwise idle core does not
        count.
        """
        machine, (cell, kinds) = plan.machine, kinds_of(plan)
        phases = [resolved(one) for number in np.unique(cell) for one in phases_of(plan, number)]
        placed = {one.op.name: one.op for one in simulate(plan, 1).placed}
        ops = [op for op in placed.values() if op.kind is Kind.EXCHANGE]
        self._coded = np.zeros(len(phases))  # s of each exchange in which ranks code
        for name, made in makeups(plan, ops).items():
            self._coded[kinds[name]] = made.coded
        self._cold = max(measured.coding - idle.coding, 0.0)
        own = [coding_seconds(p, machine, c) for p, c in zip(phases, self._coded, strict=True)]
        hot = idle.handover * machine.handover_awake  # s of a core in a hand-over
        # Each is encoded, exchanged and decoded by a thread of its own.
        self._known = np.array(own) + self._cold * plan.net.occupies_cores + HANDOVERS * hot
        self._messages = np.array(
            [messages_of_a_rank(p.schedule, p.payload, machine, machine.everyone) for p in phases]
        )
        self._taken = np.maximum(measured.processor, TINY)
        self._alone = idle.exchange
        self._woken = phases if plan.net.occupies_cores else []

    def fitted(self, machine: Machine) -> tuple[Machine, Floats]:
        """Return the machine with `cold`, `dispatch`, `message`, and links' `busy`.

        Also return the remaining errors of logarithms of the plan's exchanges.
        """
        lasts = self._lasts(machine)
        waiting = waiting_seconds(lasts, self._coded, machine)

        def errors(logs: Floats) -> Floats:
            dispatch, message, busy = START * np.exp(logs)
            handled = handling_seconds(message * self._messages, lasts, machine)
            found: Floats = np.log(
                (self._known + dispatch + handled + busy * waiting) / self._taken
            )
            return found

        logs = least_squares(errors, DOUBT, rounds=ROUNDS)
        dispatch, message, busy = (START * np.exp(logs)).tolist()

        def polled(link: Link) -> Link:
            return replace(link, busy=min(busy, 1.0))

        machine = relinked(machine, inside=polled, between=polled)
        machine = replace(machine, dispatch=dispatch, message=message, cold=self._cold)
        return machine, errors(logs)

    def _lasts(self, machine: Machine) -> Floats:
        """Return how long the exchanges last while their ranks compute: (phases,) s."""
        late = np.zeros(len(self._alone))
        for number, phase in enumerate(self._woken):
            what = phase.schedule, phase.payload, machine, machine.everyone
            late[number] = seconds_of_waking(*what)
        return self._alone + late


def interrupts_of_full_port(plan: Plan, measured: CellTimes) -> float:
    """Return the cores that interrupts take of a rank while its port is full, at most 1.

    The plan's exchanges filled the ports only for a part of the time.
    """
    machine, kinds = plan.machine, kinds_of(plan)[1]
    ranks = np.array(machine.everyone.ranks)
    full = sum(
        min(
            port_seconds(machine, machine.between, ranks, float(one.sent.mean())),
            float(measured.exchange[kinds[one.op.name]]),
        )
        for one in simulate(plan, 1).placed
        if one.op.kind is Kind.EXCHANGE
    )
    return min(measured.interrupts * float(measured.exchange.sum()) / full, 1.0) if full else 0.0
