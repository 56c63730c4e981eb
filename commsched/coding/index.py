"""Codes for the indices of a selection: one file per index code, registered."""

from abc import ABC, abstractmethod

import numpy as np

from commsched.arrays import Array, Floats
from commsched.errors import CommschedError
from commsched.registry import Registry


class IndexCode(ABC):
    """Writes ascending, distinct indices of a run as a 1-D array of bytes."""

    name: str
    lossless: bool  # the values of all selected elements travel
    encode_traffic: float = 0.0  # B moved per B of the run's values
    decode_traffic: float = 0.0

    @abstractmethod
    def encode(self, index: Array, numel: int, key: int) -> tuple[Array, Array]:
        """Return the written form, and the ascending indices that a reader will find in it.

        `key` is the run's key of random numbers, 64 bits, for codes that draw.
        """

    @abstractmethod
    def decode(self, part: Array, numel: int) -> Array:
        """Read the indices again, equal on every rank; refuse another form."""

    @abstractmethod
    def nbytes(self, count: Floats, numel: Floats) -> Floats:
        """Return the expected bytes for `count` selected of `numel` elements: (m,)."""

    def sent(self, count: Floats, numel: Floats) -> Floats:
        """Return the expected values that travel for `count` selected of `numel` elements: (m,)."""
        return count


class PlainIndices(IndexCode):
    """One int32 per index."""

    name = "int32"
    lossless = True

    def encode(self, index: Array, numel: int, key: int) -> tuple[Array, Array]:
        return index.astype(np.int32).view(np.uint8), index

    def decode(self, part: Array, numel: int) -> Array:
        if len(part) % 4:
            raise CommschedError(f"{len(part)} B are no list of 4-byte indices")
        index = part.view(np.int32)
        if len(index) and not (
            index[0] >= 0 and index[-1] < numel and (index[1:] > index[:-1]).all()
        ):
            raise CommschedError(
                f"indices must ascend within their run of {numel} elements; these lie from"
                f" {index.min()} to {index.max()}"
            )
        return index

    def nbytes(self, count: Floats, numel: Floats) -> Floats:
        return 4.0 * count


INDEX_CODES: Registry[IndexCode] = Registry("index code", "commsched.codecs")
INDEX_CODES.add("int32")(PlainIndices())
