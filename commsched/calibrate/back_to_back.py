"""Measure how exchanges follow each other if no thread has to wake up before them."""

from dataclasses import replace

import numpy as np
from mpi4py import MPI

from commsched.calibrate.cell_times import kinds_of
from commsched.calibrate.exercise import run
from commsched.calibrate.workload import RING, SMALL, WARM, plan_of
from commsched.machine.model import Machine
from commsched.net.graph import Layer, Tensor
from commsched.plan.model import Plan
from commsched.program.model import Kind
from commsched.run.engine.recorder import Recorder
from commsched.run.job import agree
from commsched.run.wire.placement import Placement
from commsched.simulate.engine import simulate
from commsched.simulate.placed import Placed

BUCKETS = 16  # of SMALL bytes, ready at once
STEPS = 12  # counted ones
PAUSE = 5e-3  # s of compute before they are ready


def make_plan(machine: Machine) -> Plan:
    """Plan a layer whose buckets are all ready at once."""
    numel = SMALL // 4
    tensors = tuple(Tensor(name=f"t{k}", shape=(numel,)) for k in range(BUCKETS))
    layer = Layer(name="layer", forward=0.0, backward=PAUSE, tensors=tensors)
    exchanges = [(tensor, layer.name, RING) for tensor in tensors]
    return plan_of("back to back", machine, (layer,), exchanges)


def measure(comm: MPI.Intracomm, machine: Machine, timeout: float, place: Placement) -> float:
    """Run the plan; return the s from the end of an exchange on all ranks to that of the next."""
    plan = make_plan(machine)
    _, rows = kinds_of(plan)  # the exchanges come first
    own = np.zeros((WARM + STEPS, BUCKETS))
    for span in run(comm, plan, WARM + STEPS, Recorder(comm.rank), timeout, place):
        if rows.get(span.name, BUCKETS) < BUCKETS:
            own[span.step, rows[span.name]] = span.end
    end = agree.gather_array(own, comm).max(axis=0)[WARM:]
    return float(np.median(np.diff(end, axis=1)))


def awake(machine: Machine, behind: float) -> float:
    """Return the share of the start-up that an exchange takes right behind another one.

    The share at which the simulated exchanges of the plan end `behind` s after each other, as
    measured; what their threads take of the cores is in that time.
    """
    machine = replace(machine, cores=0.0)
    least, most = (_behind(replace(machine, awake=share)) for share in (0.0, 1.0))
    return float(np.clip((behind - least) / (most - least), 0.0, 1.0))


def _behind(machine: Machine) -> float:
    """Simulate what `measure` returns."""
    return float(np.median(np.diff([one.end.max() for one in exchanges(machine)])))


def exchanges(machine: Machine) -> list[Placed]:
    """Simulate a step of the plan on a machine; return its exchanges in order."""
    placed = simulate(make_plan(machine), 1).placed
    return [one for one in placed if one.op.kind is Kind.EXCHANGE]
