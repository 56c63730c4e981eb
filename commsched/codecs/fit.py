"""Selected values as a fitted curve: `fit:poly` or `fit:exp`, after a selection only."""

from itertools import pairwise
from typing import Any

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.coding import parameters as read
from commsched.coding.codec import Codec, State
from commsched.coding.registry import CODECS
from commsched.kernels import bits
from commsched.kernels.accumulate import ADD, put
from commsched.kernels.device import numbers
from commsched.kernels.modules import module_of
from commsched.net.bucket import BucketSpec

DEGREE = 5  # of a polynomial; source: DeepReduce, section 5
PIECES = 8  # polynomials for each sign
SHORTEST = 12  # values of a piece, twice what determines a polynomial
HEADER = 8  # B: negative values, and all values; two little-endian 32-bit words


class Fit(Codec):
    """Sort the values of each sign, fit curves through them, send coefficients and ranks.

    Two curves, of the negative and of the other values, both by ascending magnitude. `poly`: up to
    8 polynomials of degree 5, shorter near the largest values, where the curve bends.
    `exp`: a e^(bx) + c e^(dx), by Jacquelin's linear integral equation. The place of each value in
    the sorted order travels in ceil(log2 n) bits.
    Source: Xu et al., "DeepReduce", NeurIPS 2021, arXiv 2102.03112 (there the indices travel in
    sorted order; here they may be in any code).
    """

    standard = "fit:poly"
    lossless = False
    addable = False
    fixed = True
    feedback = True
    codes_values = True
    encode_traffic = 250.0
    add_traffic = 200.0
    decode_traffic = 100.0

    def __init__(self, way: str) -> None:
        self.name = f"fit:{way}"
        self._fit, self._draw, self._numbers = WAYS[way]

    def encode(self, values: Array, state: State, start: int = 0) -> Array:
        xp = module_of(values)
        packet = xp.zeros(self._bytes(len(values)), np.uint8)
        if not len(values):
            return packet
        order = xp.argsort(values, kind="stable")
        negative = int((values < 0).sum())
        head = np.array([negative, len(values)], np.int32)
        packet[:HEADER] = xp.asarray(head).view(np.uint8)
        curves = packet[HEADER : HEADER + self._curve_bytes()].view(np.float32).reshape(2, -1)
        below, above = values[order[:negative]][::-1], values[order[negative:]]
        if np.isfinite(values).all():
            curves[0], curves[1] = self._fit(-below), self._fit(above)
        else:
            curves[:] = np.nan
        rank = xp.empty(len(values), np.uint32)
        rank[order] = xp.arange(len(values), dtype=np.uint32)
        packet[HEADER + self._curve_bytes() :] = bits.pack(rank, _width(len(values)))
        return packet

    def decode(self, packet: Array, out: Array) -> None:
        packet, numel = packet.view(np.uint8), len(out)
        if len(packet) != self._bytes(numel):
            raise self.wrong(packet, numel)
        if not numel:
            return
        negative, count = numbers(packet[:HEADER], np.int32).tolist()
        end = HEADER + self._curve_bytes()
        rank = bits.unpack(packet[end:], numel, _width(numel))
        if count != numel or not 0 <= negative <= numel or rank.max() >= numel:
            raise self.wrong(packet, numel)
        below, above = numbers(packet[HEADER:end], np.float32).reshape(2, -1)
        parts = [-self._draw(below, negative)[::-1], self._draw(above, numel - negative)]
        out[:] = module_of(out).concatenate(parts)[rank]

    def add(self, packet: Array, out: Array) -> None:
        values = np.empty_like(out)
        self.decode(packet, values)
        put(values, out, ADD)

    def nbytes(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        sizes = [self._bytes(round(float(n))) for n in np.atleast_1d(stop - start)]
        return np.array(sizes, np.float64)

    def packet(self, values: int, nbytes: int | None = None) -> Array:
        return np.empty(self._bytes(values), np.uint8)

    def _curve_bytes(self) -> int:
        return 2 * 4 * self._numbers

    def _bytes(self, numel: int) -> int:
        if not numel:
            return 0
        return HEADER + self._curve_bytes() + bits.packed_bytes(numel, _width(numel))


def _width(numel: int) -> int:
    """Return the bits of a place among `numel`."""
    return max(1, (numel - 1).bit_length())


def _cuts(numel: int) -> list[int]:
    """Return where pieces begin and end: each is half as long as the one before, within limits."""
    cuts = [0]
    while len(cuts) < PIECES and numel - cuts[-1] >= 2 * SHORTEST:
        cuts.append((cuts[-1] + numel) // 2)
    return [*cuts, numel]


def _powers(xp: Any, numel: int) -> Array:
    """Return Chebyshev polynomials up to the degree at even places: (numel, DEGREE + 1) float64."""
    places = xp.linspace(-1.0, 1.0, numel) if numel > 1 else xp.zeros(1)
    rows = [places * 0 + 1, places]
    while len(rows) <= DEGREE:
        rows.append(rows[-1] * (2 * places) - rows[-2])
    return xp.stack(rows, axis=1)


def fit_polynomials(values: Array) -> Array:
    """Fit ascending magnitudes by least squares, piece by piece: (PIECES (DEGREE + 1),)."""
    xp = module_of(values)
    coefficients = xp.zeros((PIECES, DEGREE + 1))
    cuts = _cuts(len(values)) if len(values) else [0]
    for piece, (first, stop) in enumerate(pairwise(cuts)):
        part = values[first:stop].astype(np.float64)
        coefficients[piece] = xp.linalg.lstsq(_powers(xp, len(part)), part, rcond=None)[0]
    return coefficients.reshape(-1)


def draw_polynomials(curve: Array, numel: int) -> Array:
    """Return the fitted magnitudes, none below zero: (numel,) float32."""
    xp = module_of(curve)
    cuts = _cuts(numel) if numel else [0]
    coefficients = curve.reshape(PIECES, DEGREE + 1).astype(np.float64)
    parts = [xp.zeros(0)]
    for piece, (first, stop) in enumerate(pairwise(cuts)):
        parts.append(_powers(xp, stop - first) @ coefficients[piece])
    return _magnitudes(xp.concatenate(parts))


def fit_exponentials(values: Array) -> Array:
    """Fit a e^(bx) + c e^(dx), x from 0 to 1, through ascending magnitudes: (a, b, c, d).

    y = A SS + B S + C x + D with S and SS the running integrals of y; b and d solve t^2 = B t + A.
    Source: Jacquelin, "Regressions et equations integrales", 2009, section 4.
    """
    xp = module_of(values)
    if len(values) < 5:
        mean = float(values.mean(dtype=np.float64)) if len(values) else 0.0
        return xp.asarray(np.array([mean, 0.0, 0.0, 0.0]))
    scale = float(values[-1]) or 1.0
    y = values.astype(np.float64) / scale
    x = xp.linspace(0.0, 1.0, len(y))
    once = _integral(xp, y, x)
    system = xp.stack([_integral(xp, once, x), once, x, xp.zeros_like(x) + 1], axis=1)
    a, b, _, _ = xp.linalg.lstsq(system, y, rcond=None)[0].tolist()
    root = max(b * b + 4 * a, 0.0) ** 0.5
    rates = [min(max(rate, -80.0), 80.0) for rate in ((b + root) / 2, (b - root) / 2)]
    curves = xp.stack([np.exp(x * rate) for rate in rates], axis=1)
    first, second = (xp.linalg.lstsq(curves, y, rcond=None)[0] * scale).tolist()
    return xp.asarray(np.array([first, rates[0], second, rates[1]]))


def _integral(xp: Any, y: Array, x: Array) -> Array:
    """Return the running integral by the trapezoidal rule, 0 at first."""
    return xp.concatenate([xp.zeros(1), xp.cumsum((y[1:] + y[:-1]) / 2 * xp.diff(x))])


def draw_exponentials(curve: Array, numel: int) -> Array:
    """Return the fitted magnitudes, none below zero: (numel,) float32."""
    xp = module_of(curve)
    a, b, c, d = curve.astype(np.float64).tolist()
    x = xp.linspace(0.0, 1.0, numel) if numel > 1 else xp.zeros(numel)
    return _magnitudes(a * np.exp(b * x) + c * np.exp(d * x))


def _magnitudes(curve: Array) -> Array:
    return curve.clip(0.0, float(np.finfo(np.float32).max)).astype(np.float32)


WAYS = {
    "poly": (fit_polynomials, draw_polynomials, PIECES * (DEGREE + 1)),
    "exp": (fit_exponentials, draw_exponentials, 4),
}


@CODECS.family(Fit.standard, listed=False)
def fit(parameters: list[str]) -> Fit:
    """Read the way."""
    read.at_most(parameters, 1)
    return Fit(read.choice(parameters[0], "the way", tuple(WAYS)))
