"""The device that computes and encodes on a rank: its rates, and the rates of codecs on it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite, log
from typing import Annotated

import numpy as np

from commsched.errors import CommschedError
from commsched.machine.fabric import Seconds
from commsched.machine.link import PROPORTION, UNKNOWN, PerByte
from commsched.records import (
    POSITIVE,
    SHARE,
    WRITTEN,
    Key,
    Rounded,
    Source,
    check_name,
    normalise,
    one_of,
    unit,
)

Bandwidth = Annotated[float, unit("GBps", 1e9), POSITIVE]  # B/s, of memory
Peak = Annotated[float, unit("", 1e12, quantity="tflops"), POSITIVE]  # 1/s


# Shares of values that are not zero, at which codecs of sparse runs are measured.
SPARSE, SAMPLED = 0.005, 0.05
DENSITIES = SPARSE, SAMPLED, 1.0
LINE = 16  # least numbers of 4 B that a processor's memory moves together


def scattered_bytes(count: float, numel: float) -> float:
    """Return the B that memory moves to read `count` of `numel` float32 numbers, drawn anywhere."""
    return 4.0 * numel * (1.0 - (1.0 - count / numel) ** LINE) if numel else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecRate:
    """Measured codec speed on one device: seconds = fixed + s/B * bytes as uncompressed float32."""

    encode: PerByte
    add: PerByte
    decode: PerByte
    fixed: Annotated[Seconds, WRITTEN] = 0.0  # per call
    fixed_add: Seconds | None = None  # per call of add; None: `fixed`
    fixed_decode: Seconds | None = None  # per call of decode; None: `fixed`
    # Factors on `encode` and `decode` if a share SPARSE of the values, or all of them, are not
    # zero; `encode` and `decode` hold at the share SAMPLED.
    encode_sparse: Annotated[Rounded, POSITIVE] = 1.0
    encode_dense: Annotated[Rounded, POSITIVE] = 1.0
    decode_sparse: Annotated[Rounded, POSITIVE] = 1.0
    decode_dense: Annotated[Rounded, POSITIVE] = 1.0
    # What an encode takes of these, as a share, that follows another one at once, as inside an
    # exchange: after a sleep, caches hold nothing of a thread.
    fixed_again: Annotated[Rounded, PROPORTION] = 1.0
    encode_again: Annotated[Rounded, PROPORTION] = 1.0
    # To add what feedback kept and to keep what is not sent, besides `encode`; None: not measured.
    feedback: PerByte | None = None
    source: Source = UNKNOWN

    def __post_init__(self) -> None:
        normalise(self, "codec: ", rounds=False)  # a device rounds its rates

    def at(self, density: float) -> "CodecRate":
        """Return the rate for values that are not zero in a share of `density`.

        Linear in the density between the measured ones.
        """
        encode = self.encode_sparse, 1.0, self.encode_dense
        decode = self.decode_sparse, 1.0, self.decode_dense
        if {*encode, *decode} == {1.0}:
            return self
        return replace(
            self,
            encode=self.encode * float(np.interp(density, DENSITIES, encode)),
            decode=self.decode * float(np.interp(density, DENSITIES, decode)),
        )

    def again(self) -> "CodecRate":
        """Return the rate if each encode follows another one at once."""
        if self.fixed_again == self.encode_again == 1.0:
            return self
        return replace(
            self,
            fixed=self.fixed * self.fixed_again,
            fixed_add=self.per_add,
            fixed_decode=self.per_decode,
            encode=self.encode * self.encode_again,
            fixed_again=1.0,
            encode_again=1.0,
        )

    @property
    def per_add(self) -> float:
        """Return the seconds per call of add, however few bytes."""
        return self.fixed if self.fixed_add is None else self.fixed_add

    @property
    def per_decode(self) -> float:
        """Return the seconds per call of decode, however few bytes."""
        return self.fixed if self.fixed_decode is None else self.fixed_decode


FREE = CodecRate(encode=0.0, add=0.0, decode=0.0, source="nothing to do")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The processor that computes and encodes on one rank."""

    name: str
    memory: Annotated[float, unit("GB", 1e9), POSITIVE]  # B
    bandwidth: Bandwidth
    flops: Annotated[Peak, Key("tflops")]
    precision: Annotated[str, one_of("float16", "float32")] = "float16"  # that `flops` counts
    # Share of the peak that dense layers reach.
    efficiency: Annotated[Rounded, SHARE, WRITTEN] = 1.0
    # Factors on the rates of the shipped device of this name, if `--set` changed them.
    flops_times: Annotated[Rounded, POSITIVE] = 1.0
    bandwidth_times: Annotated[Rounded, POSITIVE] = 1.0
    # Measured products: rows, inner, columns, and 1e12 operations per second in `precision`.
    matrices: tuple[tuple[float, float, float, float], ...] = ()
    gather: PerByte = 0.0  # to gather a bucket; 0: three passes over memory
    fixed_gather: Seconds = 0.0  # to gather a bucket of any size
    scale: PerByte = 0.0  # to make a bucket's sum a mean; 0: a copy
    fixed_scale: Seconds = 0.0  # to make a bucket's sum a mean, at any size
    deal: Seconds = 0.0  # to hash a non-zero to its owner; 0: from the bandwidth
    merge: Seconds = 0.0  # to merge a non-zero of several lists; 0: from the bandwidth
    codecs: Mapping[str, CodecRate] = field(default_factory=dict)  # measured; else from bandwidth
    source: Source = UNKNOWN

    def __post_init__(self) -> None:
        check_name("device", self.name)
        if not all(isfinite(value) and value > 0 for row in self.matrices for value in row):
            raise CommschedError("device: matrices must be positive numbers")
        normalise(self, "device: ")
        codecs = {name: replace(rate) for name, rate in self.codecs.items()}
        for rate in codecs.values():
            normalise(rate)
        object.__setattr__(self, "codecs", codecs)

    def rate(self, matrix: tuple[int, ...] = ()) -> float:
        """Return the flops per second of a layer, by its matrix product's shape if known.

        The measured product counts whose three sizes are nearest, in the logarithm and sorted;
        among equally near ones, the one with the nearest inner size.
        """
        if not matrix or not self.matrices:
            return self.flops * self.efficiency
        wanted = sorted(matrix)

        def far(row: tuple[float, float, float, float]) -> tuple[float, float]:
            pairs = zip(sorted(row[:3]), wanted, strict=True)
            return sum(log(a / b) ** 2 for a, b in pairs), abs(log(row[1] / matrix[1]))

        return 1e12 * min(self.matrices, key=far)[3]
