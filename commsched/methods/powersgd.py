"""PowerSGD: `powersgd:RANK`, two small sums instead of one large, with feedback and warm start."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import accumulate, pairwise
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
from commsched.kernels.finite_check import finite
from commsched.kernels.lowrank import spread, transposed_product
from commsched.kernels.modules import module_of, on_host
from commsched.kernels.random import generator
from commsched.machine.model import Device, Group
from commsched.net.bucket import BucketSpec

STANDARD = "powersgd:2"
LARGE = 1e38  # below the largest of float32 by more than rounding adds
LEAST = 1e-6  # norm of a column, relative to the largest, below which the column adds nothing


class MatrixPart(NamedTuple):
    """Elements [start, stop) of a bucket as a matrix padded with zeros; rank 0: as a vector."""

    start: int
    stop: int
    rows: int
    cols: int
    rank: int

    def of(self, bucket: Array) -> Array:
        """Return the part's elements of a bucket."""
        return bucket[self.start : self.stop]

    @property
    def left(self) -> int:
        """Return how many numbers of the part are in the first sum."""
        return self.rows * self.rank or self.stop - self.start

    @property
    def right(self) -> int:
        """Return how many numbers of the part are in the second sum."""
        return self.cols * self.rank


def parts_of(spec: BucketSpec, rank: int) -> tuple[MatrixPart, ...]:
    """Make a matrix of each tensor, (first size, product of the others).

    If two narrow matrices are no smaller than a tensor, such as a vector, its elements stay as they
    are. A bucket whose tensors are not known becomes one matrix as near to a square as possible.
    """
    found: list[MatrixPart] = []
    if not spec.widths:
        return (_part(0, spec.numel, -(-spec.numel // max(1, math.isqrt(spec.numel))), rank),)
    for (start, stop), width in zip(pairwise(spec.bounds.tolist()), spec.widths, strict=True):
        part = _part(start, stop, width, rank)
        if part.left + part.right >= stop - start:
            start = found.pop().start if found and not found[-1].rank else start
            part = MatrixPart(start, stop, 0, 0, 0)
        found.append(part)
    return tuple(found)


def _part(start: int, stop: int, cols: int, rank: int) -> MatrixPart:
    cols = max(1, min(cols, stop - start))
    rows = max(1, -(-(stop - start) // cols))
    return MatrixPart(start, stop, rows, cols, min(rank, rows, cols))


def split(values: Array, sizes: Iterable[int]) -> list[Array]:
    """Return views of consecutive runs of an array."""
    return [values[start:stop] for start, stop in pairwise(accumulate(sizes, initial=0))]


class PowerSgd(Method):
    """Sum P = M Q over the ranks, make its columns orthonormal, sum Q = M^T P; the sum is P Q^T.

    M is a tensor of the bucket plus its kept unsent values, as a matrix; vectors are
    summed as they are, with P. The next step starts from Q; a rank keeps M - P (M^T P)^T of its own
    M. A gradient that is not finite makes the result NaN on all ranks, and changes neither Q nor
    what was kept. P is made orthonormal by NumPy and P Q^T added up in one order, so that a GPU and
    a processor have equal bits; M Q and M^T P are only used as sums, and round as the device does.
    Good for large dense tensors: 4 RANK (m + n) bytes instead of 4 m n. Source: Vogels,
    Karimireddy & Jaggi, "PowerSGD", NeurIPS 2019.
    """

    lossless = False
    matrix_sums = "ring+dense"

    def __init__(self, rank: int) -> None:
        self.name = f"powersgd:{rank}"
        self._rank = rank

    def phases(self, spec: BucketSpec, group: Group) -> tuple[Phase, ...]:
        parts = parts_of(spec, self._rank)
        matrices = [part for part in parts if part.rank]
        product = sum_of(product_seconds, matrices)
        spreading = sum_of(spread_seconds, matrices)
        values = copy_seconds(4.0 * spec.numel)
        sums = copy_seconds(4.0 * sum(part.left for part in parts))
        vectors = copy_seconds(4.0 * sum(part.left for part in parts if not part.rank))
        left = replace(
            _phase("left", sum(part.left for part in parts), group),
            take=lambda state: take_left(state, parts),
            give=lambda state, total: give_left(state, total, parts),
            # The gradient and what was kept are read, and their sum is written; products are put
            # behind each other.
            take_seconds=lambda device: product(device) + 1.5 * values(device) + sums(device),
            # The sums are read for NaN; vectors are copied, and nothing of them is kept.
            give_seconds=lambda device: (
                2.0 * sum(part.left * part.rank for part in parts) / device.flops
                + 0.5 * sums(device)
                + 1.5 * vectors(device)
            ),
        )
        if not matrices:
            return (replace(left, give=lambda state, total: give_whole(state, total, parts)),)
        right = replace(
            _phase("right", sum(part.right for part in parts), group),
            take=lambda state: take_right(state, parts),
            give=lambda state, total: give_right(state, total, parts),
            take_seconds=product,
            # The result, and the loss, for which the gradient is read.
            give_seconds=lambda device: 2 * spreading(device) + 0.5 * values(device),
        )
        return left, right


def _phase(name: str, numel: int, group: Group) -> Phase:
    """Make a phase that sums `numel` numbers; the caller sets `take` and `give`."""
    collective, _, codec = PowerSgd.matrix_sums.partition("+")
    schedule, spec = route(collective, group), BucketSpec.uniform(numel)
    payload = Payload.reducing(schedule, CODECS[codec], spec)
    return Phase(name=name, schedule=schedule, payload=payload)


def sum_of(
    seconds: Callable[[MatrixPart, Device], float], parts: list[MatrixPart]
) -> Callable[[Device], float]:
    """Return the seconds of the same work on each part."""
    return lambda device: sum(seconds(part, device) for part in parts)


def product_seconds(part: MatrixPart, device: Device) -> float:
    """Return the s to multiply the part by a narrow matrix: arithmetic, or reading it once."""
    numel = part.stop - part.start
    operations = 2.0 * numel * part.rank
    return max(operations / (device.flops * device.efficiency), 4.0 * numel / device.bandwidth)


def spread_seconds(part: MatrixPart, device: Device) -> float:
    """Return the s to multiply two narrow matrices: arithmetic in the cache, writing the part."""
    numel = part.stop - part.start
    operations = (2.0 * part.rank - 1.0) * numel
    return operations / (device.flops * device.efficiency) + 4.0 * numel / device.bandwidth


def take_left(state: State, parts: tuple[MatrixPart, ...]) -> Array:
    """Return M Q of each part, or the part itself: (numbers of the first sum,)."""
    gradient = state["gradient"]
    module = module_of(gradient)
    if "powersgd right" not in state:
        state["powersgd right"] = module.asarray(start_of(state, parts))
        state["lost"] = state.get("lost", np.zeros_like(gradient))
    wanted, products = [], []
    with np.errstate(over="ignore", invalid="ignore"):
        for part, right in zip(parts, _columns(state["powersgd right"], parts), strict=True):
            numel = part.stop - part.start
            sums = module.empty(part.rows * part.cols if part.rank else numel, np.float32)
            sums[numel:] = 0
            np.add(part.of(gradient), part.of(state["lost"]), out=sums[:numel])
            if part.rank:
                sums = sums.reshape(part.rows, part.cols)
            wanted.append(sums)
            products.append((sums @ right).reshape(-1) if part.rank else sums)
    state["powersgd wanted"] = wanted
    return module.concatenate(products)


def _columns(values: Array, parts: tuple[MatrixPart, ...]) -> list[Array]:
    """Return views of the second sum's numbers: (cols, rank) of each part."""
    runs = split(values, (part.right for part in parts))
    return [run.reshape(part.cols, part.rank) for part, run in zip(parts, runs, strict=True)]


def start_of(state: State, parts: tuple[MatrixPart, ...]) -> Array:
    """Draw random columns to start from, float32 as in the second sum, equal on all ranks."""
    draw = generator(state["seed"], state["step"], 0, f"{state['name']}/right")
    return draw.standard_normal(sum(part.right for part in parts), np.float32)


def give_left(state: State, total: Array, parts: tuple[MatrixPart, ...]) -> None:
    """Keep the orthonormal columns of each part's sum, P; write the other sums to the gradient."""
    sizes = [part.left for part in parts]
    host, found = on_host(total), list[Array | None]()
    state["powersgd finite"] = finite(host)
    sums = split(host, sizes)
    for part, values, on_device in zip(parts, sums, split(total, sizes), strict=True):
        if part.rank:
            columns = orthonormal(values.reshape(part.rows, part.rank))
            found.append(module_of(total).asarray(columns))
        else:
            part.of(state["gradient"])[:] = on_device
            found.append(None)
    state["powersgd left"] = found


def take_right(state: State, parts: tuple[MatrixPart, ...]) -> Array:
    """Return M^T P of each part: (numbers of the second sum,)."""
    own = []
    with np.errstate(over="ignore", invalid="ignore"):
        for part, wanted, left in zip(
            parts, state["powersgd wanted"], state["powersgd left"], strict=True
        ):
            if part.rank:
                own.append(transposed_product(wanted, left).reshape(-1))
    state["powersgd own"] = module_of(own[0]).concatenate(own)
    return state["powersgd own"].copy()


def give_right(state: State, total: Array, parts: tuple[MatrixPart, ...]) -> None:
    """Write the sum, P Q^T, over the gradient; keep this rank's loss."""
    result, lost = state["gradient"], state["lost"]
    state["result"] = result
    lefts, rights = state["powersgd left"], _columns(total, parts)
    with np.errstate(over="ignore", invalid="ignore"):
        for part, left, right in zip(parts, lefts, rights, strict=True):
            if part.rank:
                spread(left, right, part.of(result))
    # A number of P is 1 at most, so that small numbers of Q have finite sums.
    most = float(abs(total).max(initial=0)) * max(part.rank for part in parts)
    sure = state["powersgd finite"] and most < LARGE
    if not (sure or finite(result)):
        result[:] = np.nan  # on all ranks, which all start anew: a Q too large would stay too large
        del state["powersgd right"]
        return
    owns = _columns(state["powersgd own"], parts)
    for part, left, own, wanted in zip(parts, lefts, owns, state["powersgd wanted"], strict=True):
        if part.rank:
            spread(left, own, part.of(lost), wanted.reshape(-1)[: part.stop - part.start])
        else:
            part.of(lost)[:] = 0
    sent = [right.any(axis=0) for right in rights]
    if module_of(total).concatenate(sent).all():
        state["powersgd right"] = total
        return
    # A column of zeros would stay zero and never send anything.
    starts = _columns(module_of(total).asarray(start_of(state, parts)), parts)
    found = [np.where(*one).reshape(-1) for one in zip(sent, rights, starts, strict=True)]
    state["powersgd right"] = module_of(total).concatenate(found)


def give_whole(state: State, total: Array, parts: tuple[MatrixPart, ...]) -> None:
    """End a bucket without matrices, whose second sum would be empty."""
    give_left(state, total, parts)
    state["powersgd own"] = total[:0]
    give_right(state, total[:0], parts)


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
