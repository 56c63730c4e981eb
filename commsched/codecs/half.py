"""16-bit floats on the wire, accumulated in float32."""

from collections.abc import Callable
from math import inf

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.coding.codec import Delivering, State
from commsched.coding.registry import CODECS
from commsched.kernels import half
from commsched.net.bucket import BucketSpec


class Half(Delivering):
    """One 16-bit word per value; a partial sum is rounded once per hop.

    fp16 sends values and sums beyond 65,504 as 65,504, which `skip_overflow` of
    `commsched.torch.attach` counts as an overflow; bf16 reaches as far as float32.
    """

    lossless = False
    addable = True
    fixed = True
    codes_values = True
    encode_traffic = 2.5  # read 4, write 2, and the rounded 4 back, per 4 B of values
    add_traffic = 5.0  # read 2 + 4, write 4, per 2 B of packet
    decode_traffic = 1.5  # read 2, write 4, per 4 B of values

    def __init__(
        self, name: str, narrow: Callable[[Array], Array], widen: Callable[..., Array]
    ) -> None:
        self.name = name
        self.may_overflow = name == "bf16"  # whose last 0.2 % below infinity round up to it
        self.largest = inf if self.may_overflow else float(np.finfo(np.float16).max)
        self._narrow = narrow
        self._widen = widen

    def encode(self, values: Array, state: State, start: int = 0) -> Array:
        return self._narrow(values)

    def deliver(self, packet: Array, out: Array, way: int) -> None:
        if packet.nbytes != 2 * len(out):
            raise self.wrong(packet, len(out))
        self._widen(packet.view(np.uint16), out, way)

    def nbytes(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        return np.asarray(2.0 * (stop - start))

    def packet(self, values: int, nbytes: int | None = None) -> Array:
        return np.empty(values, np.uint16)


CODECS.add("fp16")(Half("fp16", half.to_fp16, half.from_fp16))
CODECS.add("bf16")(Half("bf16", half.to_bf16, half.from_bf16))
