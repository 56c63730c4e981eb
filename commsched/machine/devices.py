"""Accelerators by name: peak, memory, and the link between two of them in a node."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Annotated, ClassVar

from commsched import files, records, shipped
from commsched.errors import CommschedError
from commsched.machine.model import Device, Link
from commsched.nearest_name import nearest
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
    """Return all shipped devices by their first name."""
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
    near = nearest(name, known)
    raise CommschedError(f"no device named {name!r}; known: {', '.join(known)}{near}")


@cache
def recognised(name: str) -> Accelerator | None:
    """Find the shipped device whose name occurs, as whole words, in a device's name.

    If several do, the longest name wins: `A100-SXM4-80GB` is not the `A100` of 40 GB.
    """
    said = _words(name)
    best: tuple[int, Accelerator | None] = (0, None)
    for first, found in accelerators().items():
        for words in map(_words, (first, *found.also)):
            places = range(len(said) - len(words) + 1)
            if len(words) > best[0] and any(said[i : i + len(words)] == words for i in places):
                best = len(words), found
    return best[1]


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())


def _plain(name: str) -> str:
    """Return a name's lower-case letters and digits, without the maker."""
    return "".join(word for word in _words(name) if word not in ("nvidia", "tesla"))
