"""The calibration workload: the choice of exchanges of many kinds, and the plan of all of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commsched.cost.price import price
from commsched.errors import CommschedError
from commsched.exchange.pair import LIBRARY
from commsched.exchange.registry import find_method
from commsched.machine.model import Machine
from commsched.net.bucket import BucketSpec, Piece
from commsched.net.graph import Layer, Net, Tensor
from commsched.net.measured import PROCESSOR, Measured
from commsched.net.sparsity import Sparsity
from commsched.plan.model import Launch, Plan
from commsched.schedule.registry import COLLECTIVES
from commsched.simulate.clocks import RESTED

DENSE = ("ring", "native", "halving-doubling", "hierarchical", "doubling")
CODED = (("ring", "fp16"), ("halving-doubling", "bf16"), ("all-gather", "coo"))
RING = "ring+dense"
# Methods of several phases, and the density of their gradients.
PHASED = (("zen", 0.05), ("hitopk:0.01", 1.0), ("sparse-ps", 0.05))
DENSITY = 0.05  # of what `coo` exchanges
LARGEST = 16 * 2**20  # B of the largest bucket
LEAST_LARGEST = 2**16  # B of it on the slowest machines
SIZES = (1, 4, 16)  # divisors of the largest size
# More divisors for the MPI's all-reduce, which has no model between its sizes.
BETWEEN = (2, 3, 6, 8, 64)
SMALL = 1024  # B of the smallest bucket
WARM = 1  # warm-up steps, which are left out
LEAST = 10  # counted steps, at least
FEW = 4  # counted steps on slow machines, so that large buckets fit into the time
TELLING = 4.0  # least ratio of the longest ring's time to the shortest's, to see time per byte
# Compute between the starts of two exchanges: per second of the first one, and at least, s. The
# pause keeps the coding of the next bucket out of the measured exchange if ranks share cores.
PAUSE, GAP = 1.3, RESTED
END = "end"  # name of the layer behind the last cell
PART = 3  # every third cell is held out of the fit


class WorkloadCell(NamedTuple):
    """One exchange of the workload."""

    method: str
    nbytes: int
    density: float = 1.0

    @property
    def spec(self) -> BucketSpec:
        """Return the bucket that is exchanged."""
        return BucketSpec.uniform(self.nbytes // 4, self.density)

    @property
    def name(self) -> str:
        """Return method and size in words."""
        return f"{self.method} {self.nbytes} B"


def choose(machine: Machine, seconds: float) -> list[WorkloadCell]:
    """Choose cells of all kinds, as large as `seconds` for all repeats allow.

    If the bytes would hardly show beside the start-ups, choose larger cells and fewer repeats.
    """
    cells = _fitting(machine, seconds, LEAST)
    return cells if tell_bytes(machine, cells) else _fitting(machine, seconds, FEW)


def tell_bytes(machine: Machine, cells: Sequence[WorkloadCell]) -> bool:
    """Tell whether the largest exchanges last long enough to show their time per byte."""
    rings = [_seconds(machine, cell) for cell in cells if cell.method == RING]
    return max(rings) >= TELLING * min(rings)


def _fitting(machine: Machine, seconds: float, steps: int) -> list[WorkloadCell]:
    """Return the largest cells whose repeats fit into the time.

    If start-ups alone exceed the time, as on a GPU that ranks share, small cells would save little;
    then the bytes of all cells may take as much time again.
    """

    def step(cells: Sequence[WorkloadCell]) -> float:
        return sum(_pause(machine, cell) for cell in cells)

    largest = LARGEST
    most = max(seconds / (WARM + steps), 2 * step(_cells(machine, LEAST_LARGEST)))
    while step(_cells(machine, largest)) > most and largest > LEAST_LARGEST:
        largest //= 2
    return _cells(machine, largest)


def _cells(machine: Machine, largest: int) -> list[WorkloadCell]:
    sizes = [*(largest // part for part in SIZES), SMALL]
    found = []
    for collective in DENSE:
        try:
            schedule = COLLECTIVES[collective](machine.everyone)
        except CommschedError:
            continue  # not for this shape of machine
        if collective != "hierarchical" or machine.nodes > 1:
            more = [largest // part for part in BETWEEN] if schedule.library else []
            found += [WorkloadCell(f"{collective}+dense", n) for n in sorted({*sizes, *more})]
    for collective, codec in CODED:
        density = DENSITY if codec == "coo" else 1.0
        found += [WorkloadCell(f"{collective}+{codec}", n, density) for n in sorted(sizes)]
    found += [WorkloadCell(method, n, density) for method, density in PHASED for n in sorted(sizes)]
    return found


def _seconds(machine: Machine, cell: WorkloadCell) -> float:
    return price(find_method(cell.method), cell.spec, machine, machine.everyone).seconds


def _pause(machine: Machine, cell: WorkloadCell) -> float:
    return GAP + PAUSE * _seconds(machine, cell)


def held_out(cells: Sequence[WorkloadCell]) -> npt.NDArray[np.bool_]:
    """Select every third cell, but not the ends of the measured curve: (cells,)."""
    ends = {f(c for c in cells if c.method == LIBRARY) for f in (min, max)}
    return np.array([i % PART == 1 and cell not in ends for i, cell in enumerate(cells)])


def make_plan(machine: Machine, cells: Sequence[WorkloadCell]) -> Plan:
    """Plan one layer and one launch per cell, and a last layer that lasts as long as the last cell.

    The backward pass starts with the first cell.
    """
    pauses = [GAP, *(_pause(machine, cell) for cell in cells)]
    end = Layer(name=END, forward=0.0, backward=pauses[-1])
    layers: list[Layer] = []
    exchanges: list[tuple[Tensor, str, str]] = []
    for number, cell in enumerate(cells):
        law = Sparsity(law="uniform", density=cell.density) if cell.density < 1 else Sparsity()
        name = f"c{number}"
        tensor = Tensor(name=name, shape=(cell.nbytes // 4,), sparsity=law)
        after = f"c{number + 1}" if number + 1 < len(cells) else END
        pause = pauses[number]
        layers.append(
            Layer(name=name, after=(after,), forward=0.0, backward=pause, tensors=(tensor,))
        )
        exchanges.append((tensor, name, cell.method))
    return plan_of("exercise", machine, (end, *reversed(layers)), exchanges)


def plan_of(
    name: str,
    machine: Machine,
    layers: tuple[Layer, ...],
    exchanges: Sequence[tuple[Tensor, str, str]],
) -> Plan:
    """Plan one launch per exchange: a tensor, the layer after which it is ready, and a method."""
    launches = tuple(
        Launch(
            name=tensor.name,
            pieces=(Piece(tensor.name, 0, tensor.numel),),
            after=after,
            method=method,
            stream="between" if machine.nodes > 1 else "inside",
            priority=number,
        )
        for number, (tensor, after, method) in enumerate(exchanges)
    )
    return Plan(
        net=Net(name=name, layers=layers, source="for calibration"),
        machine=replace(machine, jitter=0.0),
        launches=launches,
        params={"overlap": "backward"},
    )


def computing(plan: Plan) -> Plan:
    """Return the plan whose compute keeps a core busy."""
    measured = Measured(device=PROCESSOR, source="for calibration")
    return replace(plan, net=replace(plan.net, measured=measured))


def apart(plan: Plan, pauses: Sequence[float]) -> Plan:
    """Return the plan with other s of compute before each of its cells."""
    layers = [
        replace(layer, backward=pause)
        for layer, pause in zip(plan.net.layers, reversed(pauses), strict=True)
    ]
    return replace(plan, net=replace(plan.net, layers=tuple(layers)))
