"""All magnitudes from a fixed threshold on, with error feedback: `threshold:T`."""

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.coding import parameters as read
from commsched.coding.codec import State
from commsched.coding.registry import CODECS
from commsched.coding.selection import Selection
from commsched.errors import CommschedError
from commsched.kernels import select
from commsched.net.bucket import BucketSpec


class Threshold(Selection):
    """Elements of magnitude T or more; their number depends on the gradient alone.

    Bytes are predicted as if every non-zero reached T: an upper bound until a run is recorded.
    Source: Strom, "Scalable distributed DNN training using commodity GPU cloud computing",
    Interspeech 2015 (there with one sign bit per element instead of the value).
    """

    standard = "threshold:0.001"
    encode_traffic = 2.5

    def __init__(self, least: float) -> None:
        super().__init__(f"threshold:{read.written(least)}")
        self._least = least

    def select(self, values: Array, state: State, start: int) -> Array:
        return select.above(values, self._least)

    def kept(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        return np.asarray(spec.nonzeros(start, stop, merged))


@CODECS.family(Threshold.standard)
def threshold(parameters: list[str]) -> Threshold:
    """Read T."""
    read.at_most(parameters, 1)
    allowed = "a number from 0 to 3e38"
    least = read.number(parameters[0], "the threshold", allowed)
    if least > 3e38:
        raise CommschedError(f"the threshold must be {allowed}, got {parameters[0]!r}")
    return Threshold(least)
