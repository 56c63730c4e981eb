"""Read and write machine files: microseconds and GB/s in the file, seconds and bytes inside."""

from pathlib import Path
from typing import Any

from commsched import files, records, shipped
from commsched.errors import CommschedError
from commsched.machine.level_file import flattened, levelled
from commsched.machine.library import library_of
from commsched.machine.model import Device, Machine
from commsched.machine.sane_numbers import check_border, insist

FORMAT = Machine.FORMAT


def load(name: str | Path) -> Machine:
    """Read a shipped machine by its name, or any machine by its path."""
    return read(shipped.path_of("machines", str(name)))


def read(path: str | Path) -> Machine:
    """Read a machine file; refuse numbers that are likely in a wrong unit."""
    return from_file_data(files.parse(files.read_text(path), str(path)), str(path))


def from_file_data(data: Any, where: str) -> Machine:
    """Build a machine from the parsed JSON of a machine file, as `read` does."""
    machine = from_data(data, where)
    check_border(flattened(data, where), machine, where)
    return machine


def write(path: str | Path, machine: Machine) -> None:
    """Write a machine file."""
    files.write(path, file_data(machine))


def from_data(data: Any, where: str) -> Machine:
    """Build a machine from parsed JSON; `where` names the file in errors."""
    machine = records.read(Machine, flattened(data, where), where)
    try:
        library_of(machine)
    except CommschedError as error:
        raise CommschedError(f"{where}: key 'library': {error}") from None
    return machine


def file_data(machine: Machine) -> dict[str, Any]:
    """Turn a machine into the JSON data of a file that `read` accepts."""
    return levelled(insist(flat_data(machine), machine), machine)


def to_data(machine: Machine) -> dict[str, Any]:
    """Turn a machine into plain JSON data; `from_data` reverses this."""
    return levelled(flat_data(machine), machine)


def flat_data(machine: Machine) -> dict[str, Any]:
    """Turn a machine into plain JSON data whose links and ports override those of its levels."""
    return records.to_data(machine)


def device_data(device: Device) -> dict[str, Any]:
    """Turn a device into the JSON data of a machine file."""
    return records.to_data(device)
