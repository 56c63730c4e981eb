"""The device on which a net's seconds were measured, and their conversion to another one."""

from dataclasses import dataclass
from math import hypot, inf, log
from typing import Annotated, Literal

from commsched.errors import CommschedError
from commsched.machine.model import Bandwidth, Device, Peak
from commsched.records import (
    NOT_NEGATIVE,
    POSITIVE,
    REQUIRED,
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

Choice = Literal["measured", "modelled", "scaled"]
CHOICES: tuple[Choice, ...] = ("measured", "modelled", "scaled")
PROCESSOR = "host"  # name of the processor of a calibration or a profile
SAME = 0.01  # largest relative difference of two data sheets of one device


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Published samples per second of another device and of the measured one.

    Only the ratio of the two is used: batch and software of the source may differ from the net's.
    """

    device: str
    flops: Annotated[Peak, Key("tflops")]  # float16
    float32: Annotated[Peak, Key("float32_tflops")]  # as the source's numbers were computed
    bandwidth: Bandwidth
    rate: Annotated[Rounded, POSITIVE, Key("samples_per_second")]
    reference: Annotated[Rounded, POSITIVE, Key("reference_samples_per_second")]  # measured device
    source: Source

    def __post_init__(self) -> None:
        check_name("throughput", self.device)
        normalise(self, f"throughput of {self.device!r}: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The device, batch and precision of the measured seconds of a net's layers."""

    device: str
    # Peaks in float16, with matrix units, and float32; None: not stated, and nothing is scaled.
    flops: Annotated[Peak | None, Key("tflops")] = None
    float32: Annotated[Peak | None, Key("float32_tflops")] = None
    bandwidth: Bandwidth | None = None
    efficiency: Annotated[Rounded, SHARE, WRITTEN] = 1.0  # share of the peak that layers reach
    precision: Annotated[str, one_of("float32", "float16"), REQUIRED] = "float32"
    batch: Annotated[int, NOT_NEGATIVE, WRITTEN] = 0  # samples; 0: not stated
    ranks: Annotated[int, NOT_NEGATIVE] = 0  # that computed on a node at once; 0: not stated
    threads: Annotated[int, NOT_NEGATIVE] = 0  # of each rank; 0: not stated
    cores: Annotated[Rounded, NOT_NEGATIVE] = 0.0  # that the ranks of a node shared; 0: not stated
    # B that a rank touches in a step: parameters, gradients, optimiser state, what layers keep.
    working_set: Annotated[float, unit("bytes", 1.0), NOT_NEGATIVE] = 0.0
    # Seconds of a step if one rank of the node computes, over those if `ranks` do; None: unknown.
    alone: Annotated[Rounded, SHARE] | None = None
    source: Source
    throughputs: tuple[Published, ...] = ()

    def __post_init__(self) -> None:
        check_name("measured on", self.device)
        normalise(self, "measured: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFit:
    """The way in which a net's seconds were derived for a machine's device."""

    choice: Annotated[str, one_of(*CHOICES), REQUIRED]
    device: str  # of the machine
    factor: Annotated[Rounded, POSITIVE] = 1.0  # new seconds of the whole net / measured ones
    through: Annotated[str, WRITTEN] = ""  # device of a published throughput
    warning: str = ""
    load: str = ""  # effect of a number of computing ranks other than the measured one

    def __post_init__(self) -> None:
        check_name("compute", self.device)
        normalise(self, "compute: ")


def rates(device: Measured | Published | Device, precision: str) -> tuple[float, float] | None:
    """Return peak [1/s], counted as `precision` says, and memory bandwidth [B/s], if stated."""
    flops: float | None = device.flops
    if isinstance(device, Measured | Published) and precision == "float32":
        flops = device.float32
    return None if flops is None or device.bandwidth is None else (flops, device.bandwidth)


def distance(a: Measured | Published, b: Device) -> float:
    """Return the distance of two devices: 0 if equal, 0.69 (log 2) if one is twice as fast."""
    here, there = rates(a, b.precision), rates(b, b.precision)
    if here is None or there is None:
        return 0.0 if a.device in b.name else inf
    return hypot(log(here[0] / there[0]), log(here[1] / there[1]))


def check_choice(choice: str) -> None:
    """Refuse an unknown way to make seconds."""
    if choice and choice not in CHOICES:
        raise CommschedError(f"--compute must be one of {', '.join(CHOICES)}, got {choice!r}")
