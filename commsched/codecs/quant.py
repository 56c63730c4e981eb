"""Block quantisation: `quant:BITS[:BLOCK][:nearest]`, even steps between the ends of a block."""

from types import ModuleType

import numpy as np

from commsched.arrays import Array
from commsched.coding import parameters as read
from commsched.coding.blockwise import ABOVE, LARGEST, Blockwise
from commsched.coding.registry import CODECS
from commsched.kernels.quantise import UNITS, EvenSteps

LEAST = 2.0**-100  # of a step: below this, which is negligible in a gradient, a block is constant
# A step of one bit is a block's whole spread, up to twice what float32 holds: a quarter travels.
PART = 0.25
BLOCK = 2048  # values
BLOCKS = tuple(str(2**k) for k in range(3, 12))  # that share whole bytes, and divide a chunk


class Quant(Blockwise):
    """2**BITS even steps for blocks of 2048 or BLOCK values, rounded at random without bias.

    The least value and a quarter of the step travel per block; the error of a value is below one
    step. `nearest` rounds to the nearest step instead: half the error, faster, but with a bias,
    like fp16. One bit is a random choice between a block's least and largest value. Short blocks,
    a row of a message say, spread less; a block's two numbers take 8 B.
    Source: Wan et al., "AdaQP", MLSys 2023; Zhang et al., "Sylvie", arXiv 2303.01277 (there for
    the boundary messages of graph networks).
    """

    standard = "quant:8"
    columns = 2
    stepped = True
    encode_traffic = 8.0
    add_traffic = 12.0
    decode_traffic = 4.0

    def __init__(self, width: int, nearest: bool, block: int = BLOCK) -> None:
        parts = [f"quant:{width}", *([] if block == BLOCK else [str(block)])]
        self.name = ":".join([*parts, *(["nearest"] if nearest else [])])
        self.unbiased = self.dithers = not nearest
        self.bits, self.block = width, block
        self._share = ABOVE / (2**width - 1)  # of a block's spread that is a step

    def code(self, values: Array, steps: EvenSteps | None) -> tuple[Array, Array]:
        assert steps is not None
        low = values.min(axis=1, keepdims=True) + np.float32(0)  # zero without a sign
        spread = values.max(axis=1, keepdims=True).astype(np.float64) - low
        step = spread * self._share
        if step.min() >= LEAST and spread.max() <= LARGEST:  # all blocks are ordinary
            inverse = (UNITS / step).astype(np.float32)
            return np.concatenate([low, step * PART], axis=1), steps.numbers(values, low, inverse)
        return self._special(values, low, spread, steps)

    def _special(
        self, values: Array, low: Array, spread: Array, steps: EvenSteps
    ) -> tuple[Array, Array]:
        """Quantise blocks that may be constant, non-finite, or spread beyond float32."""
        step = spread * self._share
        step = np.where(np.isfinite(step), step, np.nan)
        low = np.where(np.isnan(step), np.float32(np.nan), low)
        step[step < LEAST] = 0.0
        inverse = np.where(step == 0.0, 0.0, UNITS / step)
        given, wide = (values, low, inverse), spread > LARGEST
        if wide.any():  # half of the spread is within the range of float32
            part = np.where(wide, np.float32(0.5), np.float32(1))
            given = values * part, low * part, inverse / part
        codes = steps.numbers(*given[:2], given[2].astype(np.float32))
        return np.concatenate([low, step * PART], axis=1), codes

    def value(self, codes: Array, scales: Array, out: Array) -> None:
        low, part = scales[:, :1], scales[:, 1:]
        with np.errstate(over="ignore", invalid="ignore"):  # of wide blocks, written once more
            step = part * np.float32(1 / PART)
            np.multiply(codes, step, out=out)
            np.add(out, low, out=out)
        wide = step > LARGEST / 512  # a spread beyond the range of float32
        if wide.any():
            exact = np.clip(codes * (part / np.float64(PART)) + low, -LARGEST, LARGEST)
            out[...] = np.where(wide, exact.astype(np.float32), out)

    def encode_there(
        self, kernels: ModuleType, values: Array, key: int | None, scales: Array, codes: Array
    ) -> bool:
        kernels.quant(values, self.block, self.bits, self._share, key, scales, codes)
        return True

    def decode_there(
        self, kernels: ModuleType, codes: Array, scales: Array, out: Array, way: int
    ) -> bool:
        kernels.quant_values(codes, scales, self.block, self.bits, out, way)
        return True


@CODECS.family(Quant.standard)
def quant(parameters: list[str]) -> Quant:
    """Read BITS and BLOCK, and how to round."""
    width = read.choice(parameters[0], "the bits of a value", ("1", "2", "4", "8"))
    rest = parameters[1:]
    nearest = rest[-1:] == ["nearest"]
    read.at_most(parameters, 2 + nearest)
    block = str(BLOCK)
    if len(rest) > nearest:
        block = read.choice(rest[0], "the values of a block, if not 'nearest',", BLOCKS)
    return Quant(int(width), nearest, int(block))
