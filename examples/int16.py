"""A codec as a plug-in: whole numbers of 16 bits, times a step of 2**-EXPONENT.

    commsched check examples/int16.py --ranks 64,1024
    commsched price 25000000 --machine p3.16xlarge --method ring+dense,ring+int16:12 \
        --plugin examples/int16.py
"""

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.coding import parameters as read
from commsched.coding.codec import Codec, State
from commsched.coding.registry import CODECS
from commsched.net.bucket import BucketSpec

LARGEST = 2**15 - 1
BROKEN = -(2**15)  # stands for NaN and infinities


class Int16(Codec):
    """Rounds a value to a multiple of 2**-EXPONENT, at most 32767 of them.

    All packets have one step, so that sums of packets encode without further loss. What does not
    fit goes with the next gradients. Source: an example.
    """

    lossless = False
    addable = True
    fixed = True
    feedback = True
    encode_traffic = 1.5  # read 4, write 2, per 4 B of values
    add_traffic = 5.0  # read 2 + 4, write 4, per 2 B of packet
    decode_traffic = 1.5  # read 2, write 4, per 4 B of values

    def __init__(self, exponent: int) -> None:
        self.name = f"int16:{exponent}"
        self.step = np.float32(2.0**-exponent)

    def encode(self, values: Array, state: State, start: int = 0) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            steps = np.clip(np.rint(values / self.step), -LARGEST, LARGEST)
        steps[~np.isfinite(values)] = BROKEN
        return steps.astype(np.int16)

    def decode(self, packet: Array, out: Array) -> None:
        steps = packet.view(np.int16)
        np.multiply(steps, self.step, out=out)
        out[steps == BROKEN] = np.nan

    def add(self, packet: Array, out: Array) -> None:
        values = np.empty_like(out)
        self.decode(packet, values)
        out += values

    def nbytes(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        return np.asarray(2.0 * (stop - start))

    def packet(self, values: int, nbytes: int | None = None) -> Array:
        return np.empty(values, np.int16)


@CODECS.family("int16:12")
def int16(parameters: list[str]) -> Int16:
    """Read EXPONENT."""
    read.at_most(parameters, 1)
    return Int16(int(read.choice(parameters[0], "the exponent", tuple(map(str, range(31))))))
