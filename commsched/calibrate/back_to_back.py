"""Measure how exchanges follow each other if no thread has to wake up before them."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from commsched.calibrate.exercise import RING, SMALL, WARM, Costs, run
from commsched.machine.model import Machine
from commsched.net.bucket import Piece
from commsched.net.graph import Layer, Net, Tensor
from commsched.plan.model import Launch, Plan
from commsched.program.model import Kind
from commsched.run.job import agree, clock
from commsched.run.wire.placement import Placement
from commsched.simulate.engine import simulate
from commsched.simulate.placed import Placed

BUCKETS = 16  # of SMALL bytes, ready at once
STEPS = 12  # counted ones
PAUSE = 5e-3  # s of compute before they are ready


class Row(NamedTuple):
    """What was measured, medians in s."""

    rested: float  # the first exchange, from the last rank's start to the last one's end
    behind: float  # from there to the end of the next one
    processor: float  # of a rank's cores that one takes behind another, without coding


def make_plan(machine: Machine) -> Plan:
    """Plan a layer whose buckets are all ready at once."""
    numel = SMALL // 4
    tensors = tuple(Tensor(name=f"t{k}", shape=(numel,)) for k in range(BUCKETS))
    layer = Layer(name="layer", forward=0.0, backward=PAUSE, tensors=tensors)
    launches = tuple(
        Launch(
            name=tensor.name,
            pieces=(Piece(tensor.name, 0, numel),),
            after=layer.name,
            method=RING,
            stream="between" if machine.nodes > 1 else "inside",
            priority=k,
        )
        for k, tensor in enumerate(tensors)
    )
    return Plan(
        net=Net(name="back to back", layers=(layer,), source="for calibration"),
        machine=replace(machine, jitter=0.0),
        launches=launches,
        params={"overlap": "backward"},
    )


def measure(comm: MPI.Intracomm, plan: Plan, timeout: float, place: Placement) -> Row:
    """Run the plan on all ranks."""
    offset = clock.align(comm).offset
    number = {one.op.name: k for k, one in enumerate(_exchanges(plan))}
    own = np.zeros((2, WARM + STEPS, BUCKETS))
    costs = Costs(comm.rank, 1.0 / plan.machine.alone)
    for span in run(comm, plan, WARM + STEPS, costs, timeout, place):
        if span.name in number:
            own[:, span.step, number[span.name]] = span.start + offset, span.end + offset
    everyone = np.empty((comm.size, *own.shape))
    comm.Allgather(own, everyone)
    start, end = everyone.max(axis=0)[:, WARM:]
    spent = np.diff(np.array(costs.spent).reshape(-1, BUCKETS)[WARM:], axis=1)
    return Row(
        rested=float(np.median(end[:, 0] - start[:, 0])),
        behind=float(np.median(np.diff(end, axis=1))),
        processor=float(np.mean(agree.gather_numbers(float(np.median(spent)), comm))),
    )


def awake(machine: Machine, row: Row) -> float:
    """Return the share of the start-up that an exchange takes right behind another one.

    An exchange of m s of messages takes S + m s from rest, and a S + m behind another one. The
    ratio of the two measured times is that of these sums.
    """
    first = _exchanges(make_plan(replace(machine, awake=1.0)))[0]
    whole = float(first.end.max() - first.start.max())
    startup = min(machine.startup, whole)
    share = (row.behind / row.rested * whole - (whole - startup)) / startup
    return float(np.clip(share, 0.0, 1.0))


def _exchanges(plan: Plan) -> list[Placed]:
    """Simulate a step; return its exchanges in order."""
    return [one for one in simulate(plan, 1).placed if one.op.kind is Kind.EXCHANGE]
