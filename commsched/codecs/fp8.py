"""8-bit floats on the wire, accumulated in float32: `fp8:FORM[:EXPONENT]`."""

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.coding import parameters as read
from commsched.coding.codec import Delivering, State
from commsched.coding.registry import CODECS
from commsched.kernels import eightbit
from commsched.net.bucket import BucketSpec

FORMS = {"e4m3": eightbit.E4M3, "e5m2": eightbit.E5M2}


class Fp8(Delivering):
    """One byte per value; a partial sum is rounded once per hop, to nearest, and saturates.

    e4m3 reaches from 2**-9 to 448, e5m2 from 2**-16 to 57344: all ranks first multiply gradients by
    2**EXPONENT, so that sums stay exact powers apart. Infinity becomes NaN. Source: Micikevicius et
    al., "FP8 formats for deep learning", arXiv 2209.05433.
    """

    standard = "fp8:e4m3"
    lossless = False
    addable = True
    fixed = True
    codes_values = True
    encode_traffic = 20.0
    add_traffic = 12.0
    decode_traffic = 3.0

    def __init__(self, form: str, exponent: int) -> None:
        self.name = f"fp8:{form}" + (f":{exponent}" if exponent else "")
        self._form = FORMS[form]
        self._scale = 2.0**exponent
        self._table = eightbit.table(self._form) / np.float32(self._scale)

    def encode(self, values: Array, state: State, start: int = 0) -> Array:
        return eightbit.narrow(values, self._form, self._scale)

    def deliver(self, packet: Array, out: Array, way: int) -> None:
        if packet.nbytes != len(out):
            raise self.wrong(packet, len(out))
        eightbit.look_up(self._table, packet.view(np.uint8), out, way)

    def nbytes(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        return np.asarray(1.0 * (stop - start))

    def packet(self, values: int, nbytes: int | None = None) -> Array:
        return np.empty(values, np.uint8)


@CODECS.family(Fp8.standard)
def fp8(parameters: list[str]) -> Fp8:
    """Read FORM and EXPONENT."""
    read.at_most(parameters, 2)
    form = read.choice(parameters[0], "the form", tuple(FORMS))
    exponent = parameters[1] if len(parameters) > 1 else "0"
    return Fp8(form, read.whole(exponent, "the exponent of the scale", 0, 60))
