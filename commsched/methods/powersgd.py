"""PowerSGD: `powersgd:RANK`, two small sums instead of one large, with feedback and warm start."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from commsched.arrays import Array
from commsched.coding import parameters as read
from commsched.coding.codec import State
from commsched.coding.registry import CODECS
from commsched.exchange.method import Method, Phase, copy_seconds
from commsched.exchange.pair import route
from commsched.exchange.payload import Payload
from commsched.exchange.registry import METHODS
from commsched.kernels.finite import finite
from commsched.kernels.lowrank import spread, transposed_product
from commsched.kernels.modules import module_of, on_host
from commsched.kernels.random import generator
from commsched.machine.model import Device, Group
from commsched.net.bucket import BucketSpec

STANDARD = "powersgd:2"
LEAST = 1e-6  # norm of a column, relative to the largest, below which the column adds nothing


class MatrixShape(NamedTuple):
    """A bucket as a matrix, filled up with zeros."""

    rows: int
    cols: int
    rank: int


def shape_of(numel: int, rank: int) -> MatrixShape:
    """Return the shape nearest to a square."""
    rows = max(1, math.isqrt(numel))
    cols = max(1, -(-numel // rows))
    return MatrixShape(rows, cols, min(rank, rows, cols))


class PowerSgd(Method):
    """Sum P = M Q over the ranks, make its columns orthonormal, sum Q = M^T P; the sum is P Q^T.

    M is the bucket plus what was kept of earlier buckets, as one nearly square matrix. The next
    step starts from Q; a rank keeps M - P (M^T P)^T of its own M. A gradient that is not finite
    makes the result NaN on all ranks, and changes neither Q nor what was kept. P is made
    orthonormal by NumPy, from 4 RANK sqrt(n) bytes, and P Q^T added up in one order, so that a GPU
    and a processor have equal bits; M Q and M^T P are only used as sums, and round as the device
    does. Good for large dense tensors: 8 RANK sqrt(n) bytes instead of 4 n. Source: Vogels,
    Karimireddy & Jaggi, "PowerSGD", NeurIPS 2019 (there for each weight matrix apart).
    """

    lossless = False

    def __init__(self, rank: int) -> None:
        self.name = f"powersgd:{rank}"
        self._rank = rank

    def phases(self, spec: BucketSpec, group: Group) -> tuple[Phase, ...]:
        shape = shape_of(spec.numel, self._rank)
        product, spreading = product_seconds(spec.numel, shape), spread_seconds(spec.numel, shape)
        values = copy_seconds(4.0 * spec.numel)
        left = self._phase("left", shape.rows, shape, group)
        right = self._phase("right", shape.cols, shape, group)
        return (
            replace(
                left,
                take=lambda state: take_left(state, shape),
                give=lambda state, total: give_left(state, total, shape),
                # The gradient and what was kept are read, and their sum is written.
                take_seconds=lambda device: product(device) + 1.5 * values(device),
                give_seconds=lambda device: 2.0 * shape.rows * shape.rank**2 / device.flops,
            ),
            replace(
                right,
                take=take_right,
                give=lambda state, total: give_right(state, total, shape),
                take_seconds=product,
                # The result; whether it is finite; the loss, for which the values are read again.
                give_seconds=lambda device: 2 * spreading(device) + values(device),
            ),
        )

    @staticmethod
    def _phase(name: str, side: int, shape: MatrixShape, group: Group) -> Phase:
        """Make a dense ring of `side` rows of the rank; the caller sets `take` and `give`."""
        schedule, spec = route("ring", group), BucketSpec.uniform(side * shape.rank)
        return Phase(
            name=name,
            schedule=schedule,
            payload=Payload.reducing(schedule, CODECS["dense"], spec),
            take=take_right,
            give=lambda state, total: None,
        )


def product_seconds(numel: int, shape: MatrixShape) -> Callable[[Device], float]:
    """Seconds to multiply the bucket by a narrow matrix: arithmetic, or reading it once."""
    operations = 2.0 * numel * shape.rank

    def seconds(device: Device) -> float:
        read = 4.0 * numel / device.bandwidth
        return max(operations / (device.flops * device.efficiency), read)

    return seconds


def spread_seconds(numel: int, shape: MatrixShape) -> Callable[[Device], float]:
    """Seconds to multiply two narrow matrices: arithmetic in the cache, and writing the bucket."""
    operations = (2.0 * shape.rank - 1.0) * numel

    def seconds(device: Device) -> float:
        return operations / (device.flops * device.efficiency) + 4.0 * numel / device.bandwidth

    return seconds


def take_left(state: State, shape: MatrixShape) -> Array:
    """Return M Q, (rows rank,); M is the gradient plus what was kept."""
    gradient, (rows, cols, _) = state["gradient"], shape
    if "powersgd right" not in state:
        state["powersgd right"] = module_of(gradient).asarray(start_of(state, shape))
        state["lost"] = np.zeros_like(gradient)
    wanted = module_of(gradient).empty(rows * cols, np.float32)
    wanted[len(gradient) :] = 0
    with np.errstate(over="ignore", invalid="ignore"):
        np.add(gradient, state["lost"], out=wanted[: len(gradient)])
        state["powersgd wanted"] = wanted.reshape(rows, cols)
        return (state["powersgd wanted"] @ state["powersgd right"]).reshape(-1)


def start_of(state: State, shape: MatrixShape) -> Array:
    """Draw random columns to start from, (cols, rank) float32, equal on all ranks."""
    draw = generator(state["seed"], state["step"], 0, f"{state['name']}/right")
    return draw.standard_normal((shape.cols, shape.rank), np.float32)


def give_left(state: State, total: Array, shape: MatrixShape) -> None:
    """Keep the sum's orthonormal columns: P."""
    found = orthonormal(on_host(total).reshape(shape.rows, shape.rank))
    state["powersgd left"] = module_of(total).asarray(found)


def take_right(state: State) -> Array:
    """Return M^T P, (cols rank,)."""
    with np.errstate(over="ignore", invalid="ignore"):
        own = transposed_product(state["powersgd wanted"], state["powersgd left"])
    state["powersgd own"] = own
    return own.reshape(-1).copy()


def give_right(state: State, total: Array, shape: MatrixShape) -> None:
    """Write the sum, P Q^T, over the gradient; keep this rank's loss."""
    result, left = state["gradient"], state["powersgd left"]
    right = total.reshape(shape.cols, shape.rank)
    state["result"] = result
    with np.errstate(over="ignore", invalid="ignore"):
        spread(left, right, result)
    if not finite(result):
        result[:] = np.nan  # on all ranks; the next step starts from the old Q
        return
    wanted = state["powersgd wanted"].reshape(-1)[: len(result)]
    spread(left, state["powersgd own"], state["lost"], wanted)
    sent = right.any(axis=0)
    if not sent.all():  # a column of zeros would stay zero and never send anything
        start = module_of(right).asarray(start_of(state, shape))
        right = np.where(sent, right, start)
    state["powersgd right"] = right


def orthonormal(matrix: Array) -> Array:
    """Apply Gram-Schmidt to the columns, (m, rank); dependent columns become zero."""
    out = matrix.astype(np.float64)
    with np.errstate(invalid="ignore"):
        least = LEAST * np.sqrt((out**2).sum(axis=0).max(initial=0.0))
        for i in range(out.shape[1]):
            for _ in range(2):  # twice is enough (Kahan; Parlett 1980)
                out[:, i] -= out[:, :i] @ (out[:, :i].T @ out[:, i])
            norm = np.sqrt((out[:, i] ** 2).sum())
            out[:, i] = out[:, i] / norm if norm > least else 0 * out[:, i]
    return out.astype(np.float32)


@METHODS.family(STANDARD)
def powersgd(parameters: list[str]) -> PowerSgd:
    """Read RANK."""
    read.at_most(parameters, 1)
    return PowerSgd(read.whole(parameters[0], "the rank", 1, 4))
