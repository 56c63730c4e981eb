"""What exchanges take of a rank's cores besides coding, fitted to measured processor time."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from commsched.arrays import Floats
from commsched.calibrate.cell_times import TINY, CellTimes, kinds_of
from commsched.calibrate.short_sleeps import Short, make_plan
from commsched.cost.chain import handling_seconds, messages_of_a_rank, seconds_of_waking
from commsched.cost.least_squares import least_squares
from commsched.exchange.method import Phase, resolved
from commsched.exchange.registry import phases_of
from commsched.machine.model import Link, Machine
from commsched.machine.relink import relinked
from commsched.plan.model import Plan
from commsched.program.model import Kind
from commsched.program.parts import HANDOVERS
from commsched.simulate.breakdown import coding_seconds, makeups, waiting_seconds
from commsched.simulate.clocks import SOON, asleep
from commsched.simulate.engine import simulate
from commsched.simulate.exchange_costs import port_seconds

# s of a core per exchange and per message, and the share of a core while an exchange waits: where
# the search begins, and the expected error of each one's logarithm.
START, DOUBT = np.array([3e-4, 3e-5, 0.2]), np.full(3, 3.0)
ROUNDS = 60  # of a search whose errors are computed at once


class ProcessorCosts:
    """What the exchanges of calibration take of a rank's cores.

    An exchange takes

        dispatch + message * messages + busy * seconds of waiting + its own coding and hand-overs

    and `cold` more on a rank that computes: by so much coding takes longer there. Its messages take
    no more than the rank's part of the cores while it lasts. It waits for messages as long as if no
    rank computed, and for wake-ups if ranks compute; waiting for a core to code on takes nothing.
    """

    def __init__(
        self, plans: Sequence[Plan], times: Sequence[CellTimes], short: tuple[Short, Short]
    ) -> None:
        """Note the times of plans that differ in whether ranks compute on cores.

        short: exchanges behind each other, which take no `dispatch`, and soon after another, which
        take a part of it.
        """
        machine = plans[-1].machine
        self._cold = max(times[-1].coding - times[0].coding, 0.0)
        hot = times[0].handover * machine.handover_awake
        alone = times[0].exchange
        self._parts = [
            *(_Known.of(p, t, alone, self._cold, hot) for p, t in zip(plans, times, strict=True)),
            *(_Known.short(plans[0], s, n, hot) for s, n in zip(short, (0.0, SOON), strict=True)),
        ]

    def fitted(self, machine: Machine) -> tuple[Machine, Floats]:
        """Return the machine with `cold`, `dispatch`, `message`, and links' `busy`.

        And the errors of logarithms that are left: of the plans' exchanges, and of short ones.
        """
        known, messages, taken, slept, coded = (
            np.concatenate([getattr(part, name) for part in self._parts])
            for name in ("known", "messages", "taken", "slept", "coded")
        )
        lasts = np.concatenate([part.lasts(machine) for part in self._parts])
        waiting = waiting_seconds(lasts, coded, machine)

        def errors(logs: Floats) -> Floats:
            dispatch, message, busy = START * np.exp(logs)
            handled = handling_seconds(message * messages, lasts, machine)
            own = known + dispatch * slept + handled + busy * waiting
            found: Floats = np.log(own / taken)
            return found

        logs = least_squares(errors, DOUBT, rounds=ROUNDS)
        dispatch, message, busy = (START * np.exp(logs)).tolist()

        def polled(link: Link) -> Link:
            return replace(link, busy=min(busy, 1.0))

        machine = relinked(machine, inside=polled, between=polled)
        machine = replace(machine, dispatch=dispatch, message=message, cold=self._cold)
        return machine, errors(logs)


def interrupts_of_full_port(plan: Plan, measured: CellTimes) -> float:
    """Return the cores that interrupts take of a rank while its port is full, at most 1.

    Beside the plan's exchanges ports were full for a part of the time only.
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


class _Known(NamedTuple):
    """What is known of the exchanges of a plan: (phases,) each."""

    known: Floats  # s of a core, of coding, in empty caches, and for hand-overs
    messages: Floats  # that a rank sends and receives
    taken: Floats  # s of a core, measured
    slept: Floats  # the share of waking up for which its thread has slept
    alone: Floats  # s of the exchange while no rank computes
    coded: Floats  # s of it in which ranks code
    computing: tuple[Phase, ...]  # those of a plan whose ranks compute

    @classmethod
    def of(
        cls, plan: Plan, measured: CellTimes, alone: Floats, cold: float, hot: float
    ) -> "_Known":
        """Return what is known of exchanges whose threads have slept; hot [s]: a hand-over's work.

        Each is encoded, exchanged and decoded by a thread of its own. alone: (phases,) s of the
        exchanges while no rank computes.
        """
        machine, (cell, kinds) = plan.machine, kinds_of(plan)
        phases = [resolved(one) for number in np.unique(cell) for one in phases_of(plan, number)]
        messages = [
            messages_of_a_rank(p.schedule, p.payload, machine, machine.everyone) for p in phases
        ]
        placed = {one.op.name: one.op for one in simulate(plan, 1).placed}
        ops = [op for op in placed.values() if op.kind is Kind.EXCHANGE]
        coded = np.zeros(len(phases))
        for name, made in makeups(plan, ops).items():
            coded[kinds[name]] = made.coded
        own = [coding_seconds(p, machine, c) for p, c in zip(phases, coded, strict=True)]
        return cls(
            known=np.array(own) + cold * plan.net.occupies_cores + HANDOVERS * hot,
            messages=np.array(messages),
            taken=np.maximum(measured.processor, TINY),
            slept=np.ones(len(phases)),
            alone=alone,
            coded=coded,
            computing=tuple(phases) if plan.net.occupies_cores else (),
        )

    @classmethod
    def short(cls, plan: Plan, measured: Short, slept: float, hot: float) -> "_Known":
        """Return what is known of an exchange whose threads have slept for `slept` s.

        If they have not, only the one that decodes has; all was encoded before.
        """
        machine, everyone = plan.machine, plan.machine.everyone
        phase = resolved(phases_of(make_plan(machine), 0)[0])
        messages = messages_of_a_rank(phase.schedule, phase.payload, machine, everyone)
        taken, share = max(measured.processor, TINY), asleep(slept, machine.cooling)
        seconds = measured.seconds + machine.startup
        known = (HANDOVERS if slept else 1) * hot
        found = known, messages, taken, share, seconds, 0.0
        return cls._make([*np.array(found)[:, np.newaxis], ()])

    def lasts(self, machine: Machine) -> Floats:
        """Return for how long the exchanges last beside what their ranks compute: (phases,) s."""
        late = np.zeros(len(self.alone))
        for number, phase in enumerate(self.computing):
            what = phase.schedule, phase.payload, machine, machine.everyone
            late[number] = seconds_of_waking(*what)
        return self.alone + late
