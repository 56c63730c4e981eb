"""Machines as JSON files: microseconds and GB/s at this border, seconds and bytes inside."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import msgspec

from commsched import files, shipped
from commsched.errors import CommschedError
from commsched.machine.fabric import Fabric, HeldOut
from commsched.machine.model import CodecRate, Device, Link, Machine, Nic, placement
from commsched.machine.schema import (
    CodecFile,
    DeviceFile,
    FabricFile,
    HeldOutFile,
    LinkFile,
    LinksFile,
    MachineFile,
    NicFile,
    OverrideFile,
    Points,
)
from commsched.units import significant

FORMAT: Literal["commsched-machine/1"] = "commsched-machine/1"


def load(name: str | Path) -> Machine:
    """Read a shipped machine by its name, or any machine by its path."""
    return read(shipped.path_of("machines", str(name)))


def read(path: str | Path) -> Machine:
    """Read a machine file."""
    return from_data(files.parse(files.read_text(path), str(path)), str(path))


def write(path: str | Path, machine: Machine) -> None:
    """Write a machine file."""
    files.write(path, to_data(machine))


def from_data(data: Any, where: str) -> Machine:
    """Build a machine from parsed JSON; `where` names the file in errors."""
    file = files.convert(data, MachineFile, where)
    try:
        _check_source("machine", file.source)
        return Machine(
            name=file.name,
            node_of_rank=_placed(file),
            inside=_link(file.links.inside, "links.inside"),
            between=_link(file.links.between, "links.between"),
            nic=None if file.nic is None else _nic(file.nic),
            device=_device(file.device),
            overrides=_overrides(file.overrides),
            jitter=significant(file.jitter),
            coding_jitter=significant(file.coding_jitter or 0.0),
            startup=significant(file.startup_us * 1e-6),
            restart=significant(
                (file.startup_us if file.restart_us is None else file.restart_us) * 1e-6
            ),
            handover=significant((file.handover_us or 0.0) * 1e-6),
            alone=1.0 if file.alone is None else significant(file.alone),
            slowed=1.0 if file.slowed is None else significant(file.slowed),
            burst=significant(file.burst_us * 1e-6),
            cores=file.cores,
            overlap=significant(file.overlap),
            native=_points(file.native_us),
            fabric=None if file.fabric is None else _fabric(file.fabric),
            held_out=tuple(_held_out(cell) for cell in file.held_out),
            measured={name: significant(value) for name, value in file.measured.items()},
            source=file.source,
        )
    except CommschedError as error:
        raise CommschedError(f"{where}: {error}") from None


def to_data(machine: Machine) -> dict[str, Any]:
    """Turn a machine into plain JSON data; `from_data` of it gives equal data again."""
    counts = [machine.node_of_rank.count(0), machine.nodes]
    regular = machine.node_of_rank == tuple(n for n in range(counts[1]) for _ in range(counts[0]))
    file = MachineFile(
        format=FORMAT,
        name=machine.name,
        source=_source(machine.source),
        nodes=counts[1] if regular else None,
        lanes=counts[0] if regular else None,
        node_of_rank=None if regular else machine.node_of_rank,
        links=LinksFile(inside=_link_file(machine.inside), between=_link_file(machine.between)),
        nic=None if machine.nic is None else _nic_file(machine.nic),
        overrides=tuple(
            OverrideFile(node=node, between=_link_file(link))
            for node, link in sorted(machine.overrides.items())
        ),
        device=_device_file(machine.device),
        jitter=significant(machine.jitter),
        coding_jitter=significant(machine.coding_jitter) or None,
        startup_us=significant(machine.startup * 1e6),
        restart_us=significant(machine.restart * 1e6)
        if machine.restart != machine.startup
        else None,
        handover_us=significant(machine.handover * 1e6) or None,
        alone=significant(machine.alone) if machine.alone != 1.0 else None,
        slowed=significant(machine.slowed) if machine.slowed != 1.0 else None,
        burst_us=significant(machine.burst * 1e6),
        cores=machine.cores,
        overlap=significant(machine.overlap),
        native_us=_points_file(machine.native),
        fabric=None if machine.fabric is None else _fabric_file(machine.fabric),
        held_out=tuple(_held_out_file(cell) for cell in machine.held_out),
        measured={name: significant(value) for name, value in machine.measured.items()},
    )
    data: dict[str, Any] = msgspec.to_builtins(file)
    return data


def fabric_from_data(data: Any, where: str) -> Fabric:
    """Build a fabric from parsed JSON; `where` names the place in errors."""
    file = files.convert(data, FabricFile, where)
    try:
        return _fabric(file)
    except CommschedError as error:
        raise CommschedError(f"{where}: {error}") from None


def fabric_to_data(fabric: Fabric) -> dict[str, Any]:
    """Turn a fabric into plain JSON data."""
    data: dict[str, Any] = msgspec.to_builtins(_fabric_file(fabric))
    return data


def _placed(file: MachineFile) -> tuple[int, ...]:
    counts = (file.nodes, file.lanes)
    if file.node_of_rank is not None and counts == (None, None):
        return file.node_of_rank
    if file.node_of_rank is not None or file.nodes is None or file.lanes is None:
        given = [k for k in ("nodes", "lanes", "node_of_rank") if getattr(file, k) is not None]
        raise CommschedError(
            "a machine gives either `nodes` and `lanes`, or `node_of_rank`, got"
            f" {' and '.join(given) or 'none of them'}"
        )
    return placement(file.nodes, file.lanes)


def _link(file: LinkFile, place: str) -> Link:
    _check_source(place, file.source)
    try:
        return Link(
            latency=significant(file.latency_us) * 1e-6,
            overhead=significant(file.overhead_us) * 1e-6,
            per_byte=_per_byte(file.bandwidth_GBps, "bandwidth_GBps"),
            points=_points(file.points_us),
            source=file.source,
        )
    except CommschedError as error:
        raise CommschedError(f"{place}: {error}") from None


def _link_file(link: Link) -> LinkFile:
    return LinkFile(
        latency_us=significant(link.latency * 1e6),
        overhead_us=significant(link.overhead * 1e6),
        bandwidth_GBps=_rate(link.per_byte),
        points_us=_points_file(link.points),
        source=_source(link.source),
    )


def _nic(file: NicFile) -> Nic:
    _check_source("nic", file.source)
    per_byte = _per_byte(file.bandwidth_GBps, "nic: bandwidth_GBps")
    return Nic(
        per_node=file.per_node,
        per_byte=per_byte,
        turn=significant(file.turn_B),
        source=file.source,
    )


def _nic_file(nic: Nic) -> NicFile:
    return NicFile(
        per_node=nic.per_node,
        bandwidth_GBps=_rate(nic.per_byte),
        turn_B=significant(nic.turn),
        source=_source(nic.source),
    )


def _overrides(files: tuple[OverrideFile, ...]) -> dict[int, Link]:
    found: dict[int, Link] = {}
    for file in files:
        if file.node in found:
            raise CommschedError(f"overrides: node {file.node} stands twice; give each node once")
        found[file.node] = _link(file.between, f"overrides: node {file.node}")
    return found


def _device(file: DeviceFile) -> Device:
    _check_source("device", file.source)
    return Device(
        name=file.name,
        memory=significant(file.memory_GB) * 1e9,
        bandwidth=significant(file.bandwidth_GBps) * 1e9,
        flops=significant(file.tflops) * 1e12,
        efficiency=significant(file.efficiency),
        gather=_per_byte(file.gather_GBps, "gather_GBps"),
        fixed_gather=significant(file.fixed_gather_us or 0.0) * 1e-6,
        scale=_per_byte(file.scale_GBps, "scale_GBps"),
        fixed_scale=significant(file.fixed_scale_us or 0.0) * 1e-6,
        codecs={name: _codec(codec, f"codec {name!a}") for name, codec in file.codecs.items()},
        source=file.source,
    )


def _device_file(device: Device) -> DeviceFile:
    return DeviceFile(
        name=device.name,
        memory_GB=significant(device.memory * 1e-9),
        bandwidth_GBps=significant(device.bandwidth * 1e-9),
        tflops=significant(device.flops * 1e-12),
        efficiency=significant(device.efficiency),
        gather_GBps=_rate(device.gather),
        fixed_gather_us=significant(device.fixed_gather * 1e6) or None,
        scale_GBps=_rate(device.scale),
        fixed_scale_us=significant(device.fixed_scale * 1e6) or None,
        codecs={name: _codec_file(codec) for name, codec in sorted(device.codecs.items())},
        source=_source(device.source),
    )


def _codec(file: CodecFile, place: str) -> CodecRate:
    _check_source(place, file.source)
    return CodecRate(
        encode=_per_byte(file.encode_GBps, f"{place}: encode_GBps"),
        add=_per_byte(file.add_GBps, f"{place}: add_GBps"),
        decode=_per_byte(file.decode_GBps, f"{place}: decode_GBps"),
        fixed=significant(file.fixed_us) * 1e-6,
        fixed_add=_maybe(file.fixed_add_us, 1e-6),
        fixed_decode=_maybe(file.fixed_decode_us, 1e-6),
        source=file.source,
    )


def _codec_file(codec: CodecRate) -> CodecFile:
    return CodecFile(
        encode_GBps=_rate(codec.encode),
        add_GBps=_rate(codec.add),
        decode_GBps=_rate(codec.decode),
        fixed_us=significant(codec.fixed * 1e6),
        fixed_add_us=_maybe(codec.fixed_add, 1e6),
        fixed_decode_us=_maybe(codec.fixed_decode, 1e6),
        source=_source(codec.source),
    )


def _maybe(value: float | None, times: float) -> float | None:
    return None if value is None else significant(value * times)


def _fabric(file: FabricFile) -> Fabric:
    return Fabric(**msgspec.structs.asdict(file))


def _fabric_file(fabric: Fabric) -> FabricFile:
    return FabricFile(**asdict(fabric))


def _held_out(file: HeldOutFile) -> HeldOut:
    return HeldOut(
        name=file.name,
        predicted=significant(file.predicted_us) * 1e-6,
        measured=significant(file.measured_us) * 1e-6,
    )


def _held_out_file(cell: HeldOut) -> HeldOutFile:
    return HeldOutFile(
        name=cell.name,
        predicted_us=significant(cell.predicted * 1e6),
        measured_us=significant(cell.measured * 1e6),
    )


def _per_byte(rate: float | None, place: str) -> float:
    """Turn GB/s into s/B; no rate at all means that bytes cost nothing."""
    if rate is None:
        return 0.0
    if not 1e-9 <= rate <= 1e9:
        raise CommschedError(f"{place} must be in [1e-09, 1e+09] or null, got {rate}")
    return 1e-9 / significant(rate)


def _rate(per_byte: float) -> float | None:
    return significant(1e-9 / per_byte) if per_byte else None


def _points(points: Points) -> Points:
    return tuple((significant(nbytes), significant(us) * 1e-6) for nbytes, us in points)


def _points_file(points: Points) -> Points:
    return tuple((significant(nbytes), significant(seconds * 1e6)) for nbytes, seconds in points)


def _check_source(place: str, source: str) -> None:
    if not source.strip():
        raise CommschedError(
            f"{place}: source must say where the numbers come from, got an empty text"
        )


def _source(source: str) -> str:
    return source or "not stated"
