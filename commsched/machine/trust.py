"""The trust in predictions on a calibrated machine: its held-out errors, in words."""

import math
from collections.abc import Sequence

import numpy as np

from commsched.machine.fabric import HeldOut
from commsched.machine.model import Machine
from commsched.units import count, significant

# The median error of single exchanges below which `commsched validate` asks a calibration to be
# (docs/explanation/accuracy.md): on the testbeds, with 5.8 %, iterations were off by
# 1.2 % in the median and 16 % at the most; in shared memory, with 18 %, by 7.9 % and 40 %.
LIMIT = 0.07
MEMORY_CHANGE = (
    "memory, end / begin"  # of a calibration: speed of copies on all ranks, in `measured`
)
STEADY = 0.2  # share by which memory may become faster or slower during a calibration


def errors_of(machine: Machine, computing: bool | None = None) -> tuple[float, ...]:
    """Return (predicted - measured) / measured of each held-out exchange, as files carry it.

    computing: only exchanges whose ranks did, or did not, compute on their cores; see `alike`.
    """
    cells = machine.held_out if computing is None else alike(machine, computing)
    return tuple(significant(cell.error) for cell in cells)


def alike(machine: Machine, computing: bool) -> tuple[HeldOut, ...]:
    """Return the held-out exchanges with, or without, `computing` ranks; all if there are none."""
    some = tuple(cell for cell in machine.held_out if cell.computing == computing)
    return some or machine.held_out


def held_out_line(errors: Sequence[float]) -> str:
    """State the held-out error of a calibration; `errors` must not be empty."""
    median, p90, most = np.quantile(np.abs(errors), (0.5, 0.9, 1.0)).tolist()
    return (
        f"{count(len(errors), 'held-out exchange')}: median error {median:.1%}, p90 {p90:.1%},"
        f" maximum {most:.1%}"
    )


def doubts(errors: Sequence[float]) -> tuple[str, ...]:
    """Warn in one sentence of a poor calibration; nothing where it is good or unknown."""
    if not poor(errors):
        return ()
    return (
        f"the calibration of this machine is poor: median error {np.median(np.abs(errors)):.1%} of"
        f" {count(len(errors), 'held-out exchange')}, above {LIMIT:.0%}; calibrate again with"
        " nothing else running, or longer",
    )


def steady(change: float) -> bool:
    """Tell whether memory that became `change` times as fast counts as unchanged."""
    return abs(math.log(change)) <= math.log1p(STEADY)


def poor(errors: Sequence[float]) -> bool:
    """Tell whether a calibration's held-out errors are known, and too large."""
    return bool(errors) and float(np.median(np.abs(errors))) > LIMIT
