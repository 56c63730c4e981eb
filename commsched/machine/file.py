"""Read and write machine files: microseconds and GB/s in the file, seconds and bytes inside."""

from pathlib import Path
from typing import Any

from commsched import files, records, shipped
from commsched.machine.model import Machine

FORMAT = Machine.FORMAT


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
    return records.read(Machine, data, where)


def to_data(machine: Machine) -> dict[str, Any]:
    """Turn a machine into plain JSON data; `from_data` reverses this."""
    return records.to_data(machine)
