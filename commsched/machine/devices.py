"""Accelerators by name: peak, memory, and the link between two of them in a node."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Annotated, ClassVar

from commsched import files, records, shipped
from commsched.errors import CommschedError
from commsched.machine.model import Device, Link
from commsched.records import POSITIVE, REQUIRED, Source, unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """A device with the links of the nodes that are built with it."""

    FORMAT: ClassVar[str] = "commsched-device/1"

    also: Annotated[tuple[str, ...], REQUIRED] = ()  # other names
    device: Device
    inside: Link  # between two of a node
    slot: Annotated[float, unit("GBps", 1e9), POSITIVE]  # B/s of its PCI Express in one direction
    source: Source

    def __post_init__(self) -> None:
        records.normalise(self)


@cache
def accelerators() -> dict[str, Accelerator]:
    """All shipped devices by their first name."""
    found = {}
    for name in shipped.names("devices"):
        path = str(shipped.path_of("devices", name))
        found[name] = records.read(Accelerator, files.parse(files.read_text(path), path), path)
    return found


def accelerator(name: str) -> Accelerator:
    """Find a device by one of its names, in any case: `A100`, `a100-80gb`, `NVIDIA V100`."""
    known = accelerators()
    wanted = _plain(name)
    for first, found in known.items():
        if wanted in {_plain(n) for n in (first, *found.also, found.device.name)}:
            return found
    raise CommschedError(f"no device named {name!r}; known: {', '.join(known)}")


def recognised(device: Device) -> Accelerator | None:
    """Find the shipped device whose name is part of a machine's device name, the longest one."""
    plain = _plain(device.name)
    names = [(n, found) for first, found in accelerators().items() for n in (first, *found.also)]
    matching = [(len(n), n, found) for n, found in names if _plain(n) in plain]
    return max(matching, key=lambda match: match[:2])[2] if matching else None


def _plain(name: str) -> str:
    """Lower case letters and digits, without the maker."""
    return re.sub(r"[^a-z0-9]", "", name.lower().replace("nvidia", "").replace("tesla", ""))
