"""What exchanges take of a rank's cores besides coding, fitted to measured processor time."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from commsched.arrays import Floats
from commsched.calibrate.cell_times import TINY, CellTimes, kinds_of
from commsched.calibrate.short_sleeps import Short, make_plan
from commsched.cost.chain import messages_of_a_rank
from commsched.cost.least_squares import least_squares
from commsched.exchange.method import resolved
from commsched.exchange.registry import phases_of
from commsched.machine.model import Link, Machine
from commsched.machine.relink import relinked
from commsched.plan.model import Plan
from commsched.program.model import Kind
from commsched.program.parts import HANDOVERS
from commsched.simulate.breakdown import coding_seconds, makeups, waiting_seconds
from commsched.simulate.clocks import SOON, asleep
from commsched.simulate.engine import simulate

# s of a core per exchange and per message, and the share of a core while an exchange waits: where
# the search begins, and the expected error of each one's logarithm.
START, DOUBT = np.array([3e-4, 3e-5, 0.2]), np.full(3, 3.0)


def with_processor_costs(
    plans: Sequence[Plan], times: Sequence[CellTimes], short: tuple[Short, Short]
) -> Machine:
    """Return the machine of the last plan with `cold`, `dispatch`, `message`, and links' `busy`.

    The plans differ in whether ranks compute on cores. An exchange takes of a rank's cores

        dispatch + message * messages + busy * seconds of waiting + its own coding and hand-overs

    and `cold` more on a rank that computes: by so much coding takes longer there. It waits for
    messages as long as if no rank computed; waiting for a core takes nothing. short: exchanges
    behind each other, which take no `dispatch`, and soon after another, which take a part of it.
    """
    machine = plans[-1].machine
    cold = max(times[-1].coding - times[0].coding, 0.0)
    hot = times[0].handover * machine.handover_awake
    alone = times[0].exchange
    parts = [_Known.of(p, each, alone, cold, hot) for p, each in zip(plans, times, strict=True)]
    parts += [_Known.short(plans[0], *one, hot) for one in zip(short, (0.0, SOON), strict=True)]
    known, messages, waiting, taken, waking = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )

    def errors(logs: Floats) -> Floats:
        dispatch, message, busy = START * np.exp(logs)
        own = known + dispatch * waking + message * messages + busy * waiting
        found: Floats = np.log(own / taken)
        return found

    dispatch, message, busy = (START * np.exp(least_squares(errors, DOUBT))).tolist()

    def polled(link: Link) -> Link:
        return replace(link, busy=min(busy, 1.0))

    machine = relinked(machine, inside=polled, between=polled)
    return replace(machine, dispatch=dispatch, message=message, cold=cold)


class _Known(NamedTuple):
    """What is known of the exchanges of a plan: (phases,) each."""

    known: Floats  # s of a core, of coding, in empty caches, and for hand-overs
    messages: Floats  # that a rank sends and receives
    waiting: Floats  # s
    taken: Floats  # s of a core, measured
    waking: Floats  # the share of waking up for which its thread has slept

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
            waiting=waiting_seconds(alone, coded, machine),
            taken=np.maximum(measured.processor, TINY),
            waking=np.ones(len(phases)),
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
        found = (HANDOVERS if slept else 1) * hot, messages, measured.seconds, taken, share
        return cls(*(np.array([each], np.float64) for each in found))
