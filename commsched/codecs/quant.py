"""Block quantisation: `quant:BITS[:nearest]`, even steps from a block's least to largest value."""

import numpy as np

from commsched.codecs import CODECS
from commsched.codecs import parameters as read
from commsched.codecs.base import Array
from commsched.codecs.blockwise import ABOVE, LARGEST, Blockwise
from commsched.kernels.steps import UNITS, Steps


class Quant(Blockwise):
    """2**BITS even steps for blocks of 2048 values, rounded at random: right on average.

    The least value and the step travel per block; the error of a value is below one step. `nearest`
    rounds to the nearest step instead: half the error, faster, but with a bias, as fp16 has it.
    Source: Wan et al., "AdaQP", MLSys 2023; Zhang et al., "Sylvie", arXiv 2303.07382 (there for
    the boundary messages of graph networks).
    """

    standard = "quant:8"
    block = 2048
    columns = 2
    stepped = True
    encode_traffic = 8.0
    add_traffic = 12.0
    decode_traffic = 4.0

    def __init__(self, width: int, nearest: bool) -> None:
        self.name = f"quant:{width}" + (":nearest" if nearest else "")
        self.unbiased = self.dithers = not nearest
        self.bits = width

    def code(self, values: Array, steps: Steps | None) -> tuple[Array, Array]:
        assert steps is not None
        low = values.min(axis=1, keepdims=True)
        spread = values.max(axis=1, keepdims=True).astype(np.float64) - low
        step = spread * (ABOVE / (2**self.bits - 1))
        step = np.where(np.isfinite(step), step, np.nan)
        # Below this, which is nothing to a gradient, the block counts as constant.
        step[step < 2.0**-100] = 0.0
        inverse = np.where(step == 0.0, 0.0, UNITS / step)
        wide = (spread > LARGEST).any()  # half of the spread is within the range of float32
        given = (values / 2, low / 2, inverse * 2) if wide else (values, low, inverse)
        codes = steps.numbers(*given[:2], given[2].astype(np.float32))
        return np.concatenate([low, step], axis=1), codes

    def value(self, codes: Array, scales: Array, out: Array) -> None:
        low, step = scales[:, :1], scales[:, 1:]
        if (step > LARGEST / 512).any():  # a spread beyond the range of float32
            wide = codes * step.astype(np.float64) + low
            out[...] = np.clip(wide, -LARGEST, LARGEST)
            return
        np.multiply(codes, step, out=out)
        np.add(out, low, out=out)


@CODECS.family(Quant.standard)
def quant(parameters: list[str]) -> Quant:
    """Read BITS, and how to round."""
    read.at_most(parameters, 2)
    width = read.choice(parameters[0], "the bits of a value", ("2", "4", "8"))
    nearest = [read.choice(word, "the rounding", ("nearest",)) for word in parameters[1:]]
    return Quant(int(width), bool(nearest))
