"""Checks of a machine file at its border: ports, and plain numbers within plausible limits.

A plain number beyond these limits is refused, since it is likely in another unit; written with its
unit, as "900 GB/s", it is accepted. Measured files, which state their fabric, are not checked.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from commsched.errors import CommschedError
from commsched.machine.devices import recognised
from commsched.machine.level import place_of_node
from commsched.machine.model import Machine
from commsched.machine.ports import rate
from commsched.quantity import RATE, Quantity
from commsched.records import QUANTITIES

# The fastest port sold carries 800 Gbit/s: XDR InfiniBand (IBTA, 2023), IEEE 802.3df Ethernet.
PORT = 100e9  # B/s
SOLD = (1, 2.5, 5, 10, 25, 40, 50, 100, 200, 400, 800)  # Gbit/s of Ethernet ports, IEEE 802.3
INSIDE = 2000e9  # B/s; NVLink 5 carries 900 GB/s in one direction (NVIDIA Blackwell data sheet)
LATENCY = 1.0  # s; a signal goes around the Earth in 0.2 s
MEMORY = 4e12  # B of one device; 288 GB are sold (AMD MI325X has 256, NVIDIA B300 288)
STREAM = 20e12  # B/s; 8 TB/s are sold (NVIDIA B200 data sheet)
PEAK = 20e15  # 1/s; 2.3 Pflop/s in dense float16 are sold (NVIDIA B200 data sheet)


class Doubt(NamedTuple):
    """A plain number of a file that has a limit."""

    place: str  # of its object
    key: str
    number: float
    limit: float  # in the unit used inside
    why: str

    @property
    def form(self) -> Quantity:
        """Return the quantity that the key holds."""
        return QUANTITIES[self.key.rpartition("_")[2]]

    @property
    def value(self) -> float:
        return self.number * self.form.scale


def check_border(data: Any, machine: Machine, where: str) -> None:
    """Refuse a machine file that does not state its ports, or holds implausible plain numbers."""
    if machine.fabric is not None:
        return
    if machine.size > machine.nodes > 1 and "nic" not in data:
        ranks, above = max(machine.ranks_of_node), place_of_node(machine.levels) + 1
        place = f"levels[{above}] {machine.levels[above].name!a}: " if machine.levels else ""
        raise CommschedError(
            f"{where}: {place}key 'nic' is missing: do the {ranks} ranks of a node share a network"
            ' port? say "nic": {"per_node": 1, "bandwidth_GBps": "25 Gbit/s", "source": "..."}, or'
            ' "nic": null if each rank has a port of its own'
        )
    for doubt in _doubts(data, machine):
        value, form = doubt.value, doubt.form
        shown, other = form.shown(value), "write"
        if form.kind is RATE:
            shown, other = rate(value), f'write "{doubt.number:g} Gbit/s" if that is meant, or'
        raise CommschedError(
            f"{where}: {doubt.place}.{doubt.key} {doubt.number:g} is {shown}, {doubt.why}; {other}"
            f' "{form.shown(value)}" if you mean it'
        )


def insist(data: dict[str, Any], machine: Machine) -> dict[str, Any]:
    """Return a file's data with its ports stated and its implausible numbers with their units."""
    if machine.fabric is None:
        for doubt in [*_doubts(data, machine)]:
            _at(data, doubt.place)[doubt.key] = doubt.form.shown(doubt.value)
    if machine.size > machine.nodes > 1:
        data.setdefault("nic", None)
    return data


def _doubts(data: dict[str, Any], machine: Machine) -> Iterator[Doubt]:
    """Yield the plain numbers of a file that are beyond their limit, or likely Gbit/s."""
    known = recognised(machine.device.name)
    port, why = PORT, "more than the fastest port that is sold, 800 Gbit/s"
    if known is not None and known.slot < PORT:
        port = known.slot
        why = f"more than the PCI Express slot of {known.device.name} carries, {rate(port)}"
    inside, between = (INSIDE, "more than twice NVLink 5"), (port, why)
    levels = data.get("levels")
    node = place_of_node(machine.levels) if machine.levels else 0
    rates = [
        (f"levels.{k}.{what}", between if k > node else inside)
        for k in range(len(levels) if isinstance(levels, list) else 0)
        for what in ("link", "nic")
    ]
    rates += [("links.inside", inside), ("nic", between)]
    if not machine.levels or node + 1 < len(machine.levels):  # else it stands for the one inside
        rates.append(("links.between", between))
    delays = [(place, key) for place, _ in rates for key in ("latency_us", "overhead_us")]
    for place, key, limit, reason in (
        *((place, "bandwidth_GBps", *most) for place, most in rates),
        *((place, key, LATENCY, "more than a second") for place, key in delays),
        ("device", "memory_GB", MEMORY, "more than 4 TB"),
        ("device", "bandwidth_GBps", STREAM, "more than twice the fastest memory"),
        ("device", "tflops", PEAK, "more than 20 Pflop/s"),
    ):
        number = _at(data, place).get(key)
        if isinstance(number, int | float):
            doubt = Doubt(place, key, number, limit, reason)
            if doubt.value > limit:
                yield doubt
            elif place == "nic" and number in SOLD and 8 * number not in SOLD:
                yield doubt._replace(why="which no port that is sold carries")


def _at(data: Any, place: str) -> dict[str, Any]:
    for key in place.split("."):
        if isinstance(data, list):
            data = data[int(key)]
        else:
            data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}
