"""The measurement of exchanges whose threads hardly sleep: back to back, and soon after another."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from commsched.arrays import Floats
from commsched.calibrate.exercise import mean_handover, run
from commsched.calibrate.workload import GAP, RING, SMALL, WARM, plan_of
from commsched.machine.model import Machine
from commsched.net.graph import Layer, Tensor
from commsched.plan.model import Plan
from commsched.program.model import Kind
from commsched.program.registry import STRATEGIES
from commsched.run.engine.recorder import Recorder
from commsched.run.job import agree
from commsched.run.wire.placement import Placement
from commsched.simulate.clocks import SOON
from commsched.simulate.engine import simulate

BUCKETS = 16  # of SMALL bytes, all at once or SOON after each other
STEPS = 12  # counted ones
MOST, HALVINGS = 1.0, 16  # s, the slowest cooling in the search, and the steps of the search


class Short(NamedTuple):
    """The times of an exchange whose threads have hardly slept."""

    seconds: float
    handover: float  # s, the mean until its result is decoded


def make_plan(machine: Machine, apart: float = 0.0) -> Plan:
    """Plan buckets that are ready at once, or `apart` s after each other."""
    tensors = [Tensor(name=f"t{k}", shape=(SMALL // 4,)) for k in range(BUCKETS)]
    groups = [(tensor,) for tensor in tensors] if apart else [tuple(tensors)]
    layers = tuple(
        Layer(
            name=f"layer{k}",
            after=(f"layer{k - 1}",) if k else (),
            forward=0.0,
            backward=apart if k < len(groups) - 1 else GAP,
            tensors=tensors_of,
        )
        for k, tensors_of in enumerate(reversed(groups))
    )
    exchanges = [(t, layer.name, RING) for layer in reversed(layers) for t in layer.tensors]
    return plan_of("row", machine, layers, exchanges)


def measure(
    comm: MPI.Intracomm, machine: Machine, timeout: float, place: Placement, apart: float = 0.0
) -> Short:
    """Run the plan; return the median times of an exchange.

    The seconds of an exchange count from the end of the one before, or from the start of its own
    encoding, on all ranks.
    """
    plan, recorder = make_plan(machine, apart), Recorder(comm.rank)
    rows = {name: row for row, name in enumerate(_names(plan))}
    own = np.zeros((2, len(rows), WARM + STEPS))
    for span in run(comm, plan, WARM + STEPS, recorder, timeout, place):
        if span.name in rows:
            own[:, rows[span.name], span.step] = span.start, span.end
    every = agree.gather_array(own, comm)[..., WARM:]
    late = every[:, 0, 2 * BUCKETS :] - every[:, 1, BUCKETS : 2 * BUCKETS]
    start, end = every[:, :, : 2 * BUCKETS].max(axis=0)
    seconds = float(np.median(_taken(start, end, apart)))
    return Short(seconds, mean_handover(late.max(axis=0), comm.size))


def added(machine: Machine, behind: Short, soon: Short, handover: float) -> Machine:
    """Add the costs of threads that have hardly slept; `handover` [s]: after a long sleep."""
    machine = replace(machine, awake=awake(machine, behind.seconds))
    machine = replace(machine, cooling=cooling(machine, soon.seconds))
    share = soon.handover / handover if handover else 1.0
    return replace(machine, handover_awake=float(np.clip(share, 0.0, 1.0)))


def awake(machine: Machine, behind: float) -> float:
    """Return the share of the start-up that an exchange takes right after another one.

    With this share, simulated exchanges of the plan end `behind` s after each other, as measured;
    the processor time of their threads is included.
    """
    machine = replace(machine, cores=0.0)
    least, most = (simulated(replace(machine, awake=share)) for share in (0.0, 1.0))
    return float(np.clip((behind - least) / (most - least), 0.0, 1.0))


def cooling(machine: Machine, soon: float) -> float:
    """Return the `cooling` at which simulated exchanges that are SOON apart take `soon` s.

    0 if they take longer with any `cooling`.
    """
    machine = replace(machine, cores=0.0, stalls=(), coding_jitter=0.0)
    least, most = np.log(1e-3 * SOON), np.log(MOST)
    if simulated(replace(machine, cooling=0.0), SOON) <= soon:
        return 0.0
    for _ in range(HALVINGS):
        middle = (least + most) / 2
        shorter = simulated(replace(machine, cooling=float(np.exp(middle))), SOON) < soon
        least, most = (least, middle) if shorter else (middle, most)
    return float(np.exp((least + most) / 2))


def simulated(machine: Machine, apart: float = 0.0) -> float:
    """Simulate the exchanges of `measure`; return their mean s."""
    plan = make_plan(machine, apart)
    placed = {one.op.name: one for one in simulate(plan, 1).placed if one.step == 0}
    each = [placed[name] for name in _names(plan)[: 2 * BUCKETS]]
    start, end = np.array([(one.start.max(), one.end.max()) for one in each]).T
    return float(np.mean(_taken(start, end, apart)))


def _names(plan: Plan) -> list[str]:
    """Return the names of all encodes, exchanges and decodes, each in the order of the buckets."""
    ops = STRATEGIES[plan.strategy].lower(plan, 0, {}).role_of(0).ops
    kinds = Kind.ENCODE, Kind.EXCHANGE, Kind.DECODE
    return [op.name for kind in kinds for op in ops if op.kind is kind]


def _taken(start: Floats, end: Floats, apart: float) -> Floats:
    """Return the s that each exchange but the first takes, see `measure`.

    start, end: (encodes and exchanges, ...) s.
    """
    before = start[1:BUCKETS] if apart else end[BUCKETS:-1]
    taken: Floats = end[BUCKETS + 1 :] - before
    return taken
