"""Adjust a machine until the simulated calibration workload matches the measured one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from commsched.arrays import Floats
from commsched.calibrate.cell_times import NONE, CellTimes, predict
from commsched.calibrate.processor_costs import ProcessorCosts
from commsched.cost.least_squares import least_squares
from commsched.machine.model import CodecRate, Machine
from commsched.machine.relink import scaled_links
from commsched.plan.model import Plan

Factors = Mapping[str, float]
Starts = Sequence[float]

WEIGHTS = {"exchange": 1.0, "encode": 0.5, "decode": 0.5}
# s; shorter times have less weight.
SHORT = {"exchange": 3e-3, "encode": 2e-3, "decode": 2e-3}

# Adjusted quantities, and the expected error of each one's logarithm: tight loops measure latency
# well and ports exactly, but not how threads and ranks disturb each other. There are at most a
# third as many as cells to fit.
FACTORS = {
    "startup": 3.0,
    "latency inside": 0.3,
    "latency between": 0.3,
    "bytes inside": 1.0,
    "gather": 0.5,  # per byte, from memory
    "scale": 1.0,  # what has just come, from the cache
    "gather call": 3.0,
    "scale call": 3.0,
}
# Quantities adjusted to times with computing ranks, after the others.
COMPUTING = {"wakeup": 3.0, "interpreter": 3.0}
STARTS = (2.0,)  # further starts, as logarithms, for these: the first guess is far too short


def fit(
    plan: Plan,
    measured: CellTimes,
    fitted: npt.NDArray[np.bool_],
    beat: Callable[[], None],
    costs: ProcessorCosts | None = None,
) -> Machine:
    """Adjust the plan's machine to the measured times of the cells in `fitted`, (cells,).

    If the plan's net computes on the cores, only quantities that computing changes are adjusted:
    first as if each rank had its own cores, which is far faster to simulate. costs: fitted together
    with the machine, since wake-up delays and processor time of exchanges depend on each other.
    """

    def with_costs(machine: Machine) -> tuple[Machine, Floats]:
        return (machine, NONE) if costs is None else costs.fitted(machine)

    def fitted_on(cores: float, machine: Machine, factors: Factors, starts: Starts = ()) -> Machine:
        def errors(tried: Machine) -> Floats:
            beat()
            tried, errors_of_costs = with_costs(tried)
            on = replace(plan, machine=replace(tried, cores=cores))
            of_times = log_errors(predict(on), measured, fitted)
            return np.concatenate([of_times, errors_of_costs])

        found = adjusted(machine, nearest(machine, factors, errors, starts))
        return with_costs(found)[0]

    if not plan.net.occupies_cores:  # exchanges that lie apart hardly share cores
        return fitted_on(0.0, plan.machine, FACTORS)
    near = fitted_on(0.0, plan.machine, COMPUTING, STARTS)
    return fitted_on(plan.machine.cores, near, COMPUTING)


def nearest(
    machine: Machine,
    doubts: Factors,
    errors: Callable[[Machine], Floats],
    starts: Starts = (),
) -> dict[str, float]:
    """Return the factors of a machine with the smallest errors of logarithms, damped towards 1.

    doubts: the expected error of each factor's logarithm. starts: logarithms of all factors from
    which the search begins, besides 0.
    """
    names = [name for name in doubts if matters(machine, name)]

    def factors(logs: Floats) -> dict[str, float]:
        return dict(zip(names, np.exp(logs).tolist(), strict=True))

    logs = least_squares(
        lambda tried: errors(adjusted(machine, factors(tried))),
        np.array([doubts[name] for name in names]),
        [np.full(len(names), start) for start in starts],
    )
    return factors(logs)


def log_errors(predicted: CellTimes, measured: CellTimes, fitted: npt.NDArray[np.bool_]) -> Floats:
    """Return the weighted log(predicted / measured) of all times of the fitted cells."""
    found, fitted = [], fitted[measured.cell]
    for field, weight in WEIGHTS.items():
        mine, real = getattr(predicted, field), getattr(measured, field)
        error = np.log(np.maximum(mine[fitted], 1e-9) / np.maximum(real[fitted], 1e-9))
        found.append(weight * np.sqrt(real[fitted] / (real[fitted] + SHORT[field])) * error)
    return np.concatenate(found)


def matters(machine: Machine, name: str) -> bool:
    """Tell whether a factor has an effect on this machine."""
    if name in ("latency between", "bytes between"):
        return machine.nodes > 1
    if name in ("latency inside", "bytes inside"):
        return machine.nodes < machine.size
    return True


def adjusted(machine: Machine, factors: Factors) -> Machine:
    """Multiply seconds of the machine by factors."""

    def factor(name: str) -> float:
        return factors.get(name, 1.0)

    device = machine.device
    times = factor("coding")
    if machine.nodes == 1:  # the link to another node is the one inside
        links = {f"{what} between": factor(f"{what} inside") for what in ("latency", "bytes")}
        factors = {**factors, **links}
    return replace(
        scaled_links(machine, factors),
        startup=machine.startup * factor("startup"),
        wakeup=machine.wakeup * factor("wakeup"),
        interpreter=machine.interpreter * factor("interpreter"),
        native=tuple((size, each * factor("library")) for size, each in machine.native),
        device=replace(
            device,
            gather=device.gather * factor("gather"),
            scale=device.scale * factor("scale"),
            fixed_gather=device.fixed_gather * factor("gather call"),
            fixed_scale=device.fixed_scale * factor("scale call"),
            deal=device.deal * factor("coding"),
            merge=device.merge * factor("coding"),
            codecs={name: _rate(rate, times) for name, rate in device.codecs.items()},
        ),
    )


def _rate(rate: CodecRate, times: float) -> CodecRate:
    return replace(
        rate,
        encode=times * rate.encode,
        add=times * rate.add,
        decode=times * rate.decode,
        feedback=None if rate.feedback is None else times * rate.feedback,
    )
