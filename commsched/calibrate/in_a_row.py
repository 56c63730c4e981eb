"""Measure how exchanges follow each other if no thread has to wake up before them."""

from dataclasses import replace

import numpy as np
from mpi4py import MPI

from commsched.calibrate.exercise import RING, SMALL, WARM, run
from commsched.machine.model import Machine
from commsched.net.bucket import Piece
from commsched.net.graph import Layer, Net, Tensor
from commsched.plan.model import Launch, Plan
from commsched.program.model import Kind
from commsched.run.engine.recorder import Recorder
from commsched.run.job import agree
from commsched.run.wire.placement import Placement
from commsched.simulate.engine import simulate
from commsched.simulate.placed import Placed

BUCKETS = 16  # of SMALL bytes, ready at once
STEPS = 12  # counted ones
HALVINGS = 12  # of the range of what is fitted
PAUSE = 5e-3  # s of compute before they are ready


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
        net=Net(name="in a row", layers=(layer,), source="for calibration"),
        machine=replace(machine, jitter=0.0),
        launches=launches,
        params={"overlap": "backward"},
    )


def measure(comm: MPI.Intracomm, plan: Plan, timeout: float, place: Placement) -> float:
    """Run the plan on all ranks; return the s from an exchange's end to that of the next one."""
    names = [one.op.name for one in _exchanges(plan)]
    ends = np.zeros((WARM + STEPS, len(names)))
    for span in run(comm, plan, WARM + STEPS, Recorder(comm.rank), timeout, place):
        if span.name in names:
            ends[span.step, names.index(span.name)] = span.end
    own = float(np.median(np.diff(ends[WARM:], axis=1)))
    return float(np.mean(agree.gather_numbers(own, comm)))


def awake(machine: Machine, measured: float) -> float:
    """Return the share `awake` with which simulated exchanges follow each other as measured."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        share = (low + high) / 2
        low, high = (share, high) if _simulated(machine, share) < measured else (low, share)
    return (low + high) / 2


def _simulated(machine: Machine, share: float) -> float:
    ends = [one.end.mean() for one in _exchanges(make_plan(replace(machine, awake=share)))]
    return float(np.median(np.diff(ends)))


def _exchanges(plan: Plan) -> list[Placed]:
    """Simulate a step; return its exchanges in order."""
    return [one for one in simulate(plan, 1).placed if one.op.kind is Kind.EXCHANGE]
