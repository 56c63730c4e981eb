"""Changes to single fields of a machine: `nic=100 Gbit/s`, `links.between.latency=9 us`."""

import json
from collections.abc import Sequence, Set
from typing import Any

from commsched import records
from commsched.errors import CommschedError
from commsched.machine import file
from commsched.machine.devices import accelerator, recognised
from commsched.machine.level import place_of_node
from commsched.machine.model import Device, Machine, resized
from commsched.quantities import PORT
from commsched.records import QUANTITIES

SHORT = {
    "net": "nic",
    "network": "nic",
    "port": "nic",
    "nic.bandwidth": "nic",
    "nic.bandwidth_GBps": "nic",
    "ports": "nic.per_node",
    "between": "links.between.bandwidth_GBps",
    "latency": "links.between.latency_us",
    "inside": "links.inside.bandwidth_GBps",
    "gpus": "lanes",
    "ranks": "lanes",
    "device": "gpu",
    "memory": "device.memory_GB",
    "tflops": "device.tflops",
    "efficiency": "device.efficiency",
}
COUNTS = ("nodes", "lanes")
Stale = list[tuple[dict[str, Any], str]]  # records, and a key of each that is no longer valid
# Keys on which no exchange's seconds depend, and keys that count only while ranks compute.
NOT_LINKS = ("source", "jitter", "stalls", "coding_jitter", "measured", "native_us", "held_out")
COMPUTE = ("memory_GB", "tflops", "precision", "efficiency", "matrices")
ELSEWHERE = frozenset((*NOT_LINKS, *COMPUTE))
WAKING = ("wakeup_us", "interpreter_us", "cold_us", "handover_computing_us")
BESIDE_COMPUTING = frozenset(("overlap", *WAKING))


def changed(machine: Machine, words: Sequence[str]) -> Machine:
    """Give a machine the values of `KEY=VALUE` words; its name lists them.

    A key is a key of the file, with dots and with or without its unit, or a short name; a level's
    key is its name, as in `levels.rack.oversubscription`. Measurements that depend on a changed
    value are dropped: native all-reduce, held-out errors, curves of links.
    A port is changed first, and its links with it, unless another word sets these links.
    """
    for word in sorted(words, key=lambda word: _key(word) != "nic"):
        where = f"--set {word}" if word.isprintable() else f"--set {word!a}"
        key, equals, value = word.partition("=")
        value = value.strip()
        if not (key.strip() and equals and value and word.isprintable()):
            raise CommschedError(f"{where}: expected KEY=VALUE, such as nic=25 Gbit/s")
        machine = _changed(machine, _key(word), value, where)
    return machine


def _key(word: str) -> str:
    """Return the key of the file that a word changes."""
    key = word.partition("=")[0].strip()
    return SHORT.get(key, key)


def _changed(machine: Machine, key: str, value: str, where: str) -> Machine:
    if key in COUNTS:
        if not value.isascii() or not value.isdecimal():
            raise CommschedError(f"{where}: {key} is a whole number, such as 8; got {value!a}")
        return resized(machine, **{key: int(value)})
    data = (file.to_data if key.startswith("levels.") else file.flat_data)(machine)
    stale: Stale = []
    if key == "gpu":
        sold, known = accelerator(value), recognised(machine.device.name)
        data["device"] = file.device_data(sold.device)
        if known is not None and machine.inside == known.inside:  # as sold with the device
            data["links"]["inside"] = records.to_data(sold.inside)
    elif key == "nic":
        stale = _port(data, machine, value, where)
    else:
        stale = _field(data, key, value, where)
    before = machine.name + (", " if " with " in machine.name else " with ")
    data["name"] = f"{before}{key}={value}"[:200]
    made = file.from_data(data, where)
    if _told(made, {"source"}) == _told(machine, {"source"}):
        return made
    for record, measured in stale:
        record.pop(measured, None)
    if key != "gpu":
        data["device"] |= _times(machine.device, made.device)
    if _told(made, ELSEWHERE | BESIDE_COMPUTING) != _told(machine, ELSEWHERE | BESIDE_COMPUTING):
        data.pop("native_us", None)
    if _told(made, ELSEWHERE) != _told(machine, ELSEWHERE) or made.native != machine.native:
        data.pop("held_out", None)
    return file.from_data(data, where)


def _times(before: Device, after: Device) -> dict[str, float]:
    """Return the factors between a device's new and old rates, if it keeps its name."""
    return {
        "flops_times": before.flops_times * (after.flops / before.flops),
        "bandwidth_times": before.bandwidth_times * (after.bandwidth / before.bandwidth),
    }


def _told(machine: Machine, without: Set[str]) -> Any:
    """Return a machine's file data without its name and without some keys at any depth."""

    def told(data: Any) -> Any:
        if isinstance(data, dict):
            return {key: told(value) for key, value in data.items() if key not in without}
        return [told(each) for each in data] if isinstance(data, list) else data

    return told({**file.flat_data(machine), "name": ""})


def _port(data: dict[str, Any], machine: Machine, value: str, where: str) -> Stale:
    """Set the rate of a node's port; two ranks reach the same share of it as before.

    If ranks share no port, each rank gets its own port of this rate.
    """
    rate = PORT.read(value, f"{where}: nic") / 1e9
    between, nic = data["links"]["between"], data.get("nic")
    share = 1.0
    if nic is None:
        data["nic"] = {"per_node": max(machine.ranks_of_node)}
    elif machine.nic is not None and machine.nic.per_byte and machine.between.per_byte:
        share = machine.nic.per_byte / machine.between.per_byte
    said = f"set to {value}"
    data["nic"] |= {"bandwidth_GBps": rate, "source": said}
    above = data.get("levels", [])[place_of_node(machine.levels) + 2 :] if machine.levels else []
    old = between["bandwidth_GBps"]  # None: bytes cost nothing
    between["bandwidth_GBps"] = rate * share
    for link in (level["link"] for level in above):  # messages leave a node by its port
        if old and link["bandwidth_GBps"]:
            link["bandwidth_GBps"] *= rate * share / old
    followed = [between, *(level["link"] for level in above)]
    for link in followed:
        link["source"] = f"bandwidth: {said}; before: {link['source']}"
    return [(link, "points_us") for link in followed]


def _field(data: dict[str, Any], key: str, value: str, where: str) -> Stale:
    place, _, leaf = key.rpartition(".")
    found: Any = data
    for part in filter(None, place.split(".")):
        if isinstance(found, list):  # levels
            found = {each["name"]: each for each in found}
        found = found.get(part) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        levels = ", ".join(each["name"] for each in data.get("levels", ()))
        told = f"; its levels: {levels}" if levels else ""
        raise CommschedError(f"{where}: the machine has no {place!a}{told}")
    units = (f"{leaf}_{unit}" for unit in QUANTITIES if unit)
    leaf = leaf if leaf in found else next((name for name in units if name in found), leaf)
    try:
        found[leaf] = json.loads(value)
    except ValueError:
        found[leaf] = value
    if "source" in found and leaf != "source":
        found["source"] = f"{leaf}: set to {value}; before: {found['source']}"
    if leaf in ("efficiency", "tflops"):
        return [(found, "matrices")]
    return [(found, "points_us")] if leaf.startswith("bandwidth") else []
