"""The keys of machine files, in the units that they are written in; see models/README.md."""

from typing import Literal

import msgspec

Points = tuple[tuple[float, float], ...]


class Keys(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """What all parts of a machine file have in common."""


class LinkFile(Keys, kw_only=True, frozen=True):
    """A link of a machine file; models/README.md explains the keys."""

    latency_us: float
    overhead_us: float
    bandwidth_GBps: float | None  # None: bytes cost nothing
    points_us: Points = ()
    source: str


class LinksFile(Keys, kw_only=True, frozen=True):
    """The `links` of a machine file."""

    inside: LinkFile
    between: LinkFile


class NicFile(Keys, kw_only=True, frozen=True):
    """The `nic` of a machine file."""

    per_node: int
    bandwidth_GBps: float | None
    turn_B: float = 0.0
    source: str


class OverrideFile(Keys, kw_only=True, frozen=True):
    """An `overrides` entry of a machine file."""

    node: int
    between: LinkFile


class CodecFile(Keys, kw_only=True, frozen=True):
    """A `codecs` entry of a machine file's device."""

    encode_GBps: float | None
    add_GBps: float | None
    decode_GBps: float | None
    fixed_us: float = 0.0
    fixed_add_us: float | None = None
    fixed_decode_us: float | None = None
    source: str


class DeviceFile(Keys, kw_only=True, frozen=True):
    """The `device` of a machine file."""

    name: str
    memory_GB: float
    bandwidth_GBps: float
    tflops: float
    efficiency: float = 1.0
    gather_GBps: float | None = None
    fixed_gather_us: float | None = None
    scale_GBps: float | None = None
    fixed_scale_us: float | None = None
    codecs: dict[str, CodecFile] = {}
    source: str


class FabricFile(Keys, kw_only=True, frozen=True):
    """The `fabric` of a machine file and of a timeline's meta."""

    hosts: tuple[str, ...]
    ranks: tuple[int, ...]
    mpi: str
    transport: str
    cores: int
    processor: str


class HeldOutFile(Keys, kw_only=True, frozen=True):
    """A `held_out` entry of a machine file."""

    name: str
    predicted_us: float
    measured_us: float


class MachineFile(Keys, kw_only=True, frozen=True):
    """A machine file."""

    format: Literal["commsched-machine/1"]
    name: str
    source: str
    nodes: int | None = None
    lanes: int | None = None
    node_of_rank: tuple[int, ...] | None = None
    links: LinksFile
    nic: NicFile | None = None
    overrides: tuple[OverrideFile, ...] = ()
    device: DeviceFile
    jitter: float = 0.0
    coding_jitter: float | None = None  # None here and below: plans from before keep their hash
    startup_us: float = 0.0
    restart_us: float | None = None
    handover_us: float | None = None
    alone: float | None = None
    slowed: float | None = None
    burst_us: float = 0.0
    cores: int = 0
    overlap: float = 1.0
    native_us: Points = ()
    fabric: FabricFile | None = None
    held_out: tuple[HeldOutFile, ...] = ()
    measured: dict[str, float] = {}
