"""A machine whose links are slower than its file says."""

from typing import Any

from commsched.machine import file
from commsched.machine.model import Machine

RATE, CURVE = "bandwidth_GBps", "points_us"  # keys of links and ports
MEASURED = ("native_us", "held_out")  # with the links as they were
DEVICE = "device"


def slower(machine: Machine, share: float) -> Machine:
    """Return the machine with every link and port at a share of its rate."""
    data = file.to_data(machine)
    for key in MEASURED:
        data.pop(key, None)
    kept = data.pop(DEVICE)
    return file.from_data({**_slowed(data, share), DEVICE: kept}, "a slower machine")


def _slowed(data: Any, share: float) -> Any:
    """Scale all rates and curves in a part of a machine file."""
    if isinstance(data, list):
        return [_slowed(each, share) for each in data]
    if not isinstance(data, dict):
        return data
    return {key: _value(key, value, share) for key, value in data.items()}


def _value(key: str, value: Any, share: float) -> Any:
    if key == RATE:
        return None if value is None else value * share  # None: bytes cost nothing
    if key == CURVE:
        return [[nbytes, time / share] for nbytes, time in value]
    return _slowed(value, share)
