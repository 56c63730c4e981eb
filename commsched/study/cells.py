"""The cells of a study: the product of lists of nets, machines, planners, bandwidths and more."""

import hashlib
import tomllib
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property, lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from commsched import files, records, shipped
from commsched.errors import CommschedError
from commsched.exchange.registry import find_method, lossy_name
from commsched.machine import file as machine_file
from commsched.machine.change import changed
from commsched.machine.model import Device, Machine, of_ranks, resized
from commsched.nearest_name import nearest
from commsched.net import file as net_file
from commsched.net.compute import fitted
from commsched.net.graph import Net
from commsched.net.load import under_load
from commsched.net.measured import check_choice
from commsched.plan.model import Param
from commsched.planner.only_methods import only
from commsched.planner.registry import DEFAULT, PLANNERS
from commsched.planner.request import Request
from commsched.program.registry import STRATEGIES
from commsched.quantities import DENSITY, PORT, POSITIVE

SAME = "-"  # the value of the machine or the net, or nothing
ALIASES = {"between": "bandwidth"}
NEAR = 24  # machines, and nets with their prices, that a process caches


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One plan of a study, as words; values of several parts have blanks between them."""

    net: str
    machine: str
    nodes: str = SAME
    ranks: str = SAME
    bandwidth: str = SAME  # of a node's port
    set: str = SAME  # KEY=VALUE; KEY=VALUE
    strategy: str = "sync"  # NAME KEY=VALUE ...
    planner: str = DEFAULT
    allow: str = SAME  # CODEC ...
    method: str = SAME  # METHOD ...
    compute: str = SAME
    scale: str = "1"
    density: str = SAME  # of every gradient
    simulate: bool = False

    @property
    def digest(self) -> str:
        """Name the cell by its words, and by the content of its files."""
        net, machine = self.content
        return records.digest({**asdict(self), "net": net, "machine": machine})[:16]

    @cached_property
    def content(self) -> tuple[str, str]:
        """Return the content of the files, which may change before the next study."""
        return _content("nets", self.net), _content("machines", self.machine)

    @property
    def words(self) -> dict[str, str]:
        """Return the words of the axes."""
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def load(self) -> tuple[str, ...]:
        """Return the words that decide the net, the methods and the strategy on a machine."""
        axes = ("net", "scale", "density", "compute", "strategy", "allow", "method")
        return *(getattr(self, axis) for axis in axes), self.content[0]

    @property
    def place(self) -> tuple[str, str, str, str, str, str]:
        """Return the words that decide the cell's machine: cells of one machine share prices."""
        axes = self.machine, self.set, self.nodes, self.ranks, self.bandwidth
        return *axes, self.content[1]

    def request(self) -> Request:
        """Return the cell's request; an error says in one sentence why the cell has no plan."""
        machine = machine_of(*self.place)
        compute = "" if self.compute == SAME else self.compute
        scale = POSITIVE.read(self.scale, "scale")
        strategy, params = _strategy(self.strategy)
        words = self.net, self.machine, self.set, compute, scale, self.density
        net = net_of(*words, self.content)
        request = Request(
            net=under_load(net, machine, compute),
            machine=machine,
            strategy=strategy,
            params=params,
            lossy=_parts(self.allow),
            messages=_parts(self.allow),
        )
        return only(request, _parts(self.method))


AXES = tuple(field.name for field in fields(Cell) if field.name != "simulate")
KEYS = (*AXES, *ALIASES, "simulate")


def read(path: Path) -> list[Cell]:
    """Read a TOML file: the axes at its top, and `[[study]]` tables that differ from them."""
    try:
        data = tomllib.loads(files.read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise CommschedError(f"{path}: not valid TOML: {error}") from None
    tables = data.pop("study", [{}])
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise CommschedError(f"{path}: key 'study' must be tables, written [[study]]")
    found = [cell for table in tables for cell in product_of({**data, **table}, str(path))]
    return list(dict.fromkeys(found))


def product_of(given: Mapping[str, Any], where: str) -> list[Cell]:
    """Return the cells of all combinations; `where` names the source of `given` in errors."""
    _content.cache_clear()  # other caches have the content in their keys
    axes: dict[str, list[str]] = {}
    for key, value in given.items():
        axis = ALIASES.get(key, key)
        if key not in KEYS:
            known = ", ".join(KEYS)
            raise CommschedError(
                f"{where}: unknown key {key!r}; known: {known}{nearest(key, KEYS)}"
            )
        if axis in axes:
            raise CommschedError(f"{where}: {key!r} and {axis!r} mean the same; give one of them")
        if axis != "simulate":
            axes[axis] = _words(value, f"{where}: {key}")
    simulate = given.get("simulate", False)
    if not isinstance(simulate, bool):
        raise CommschedError(f"{where}: simulate must be true or false, got {simulate!r}")
    for axis in ("net", "machine"):
        if axis not in axes:
            raise CommschedError(f"{where}: {axis} is missing; give one name or several")
    _check(axes, where)
    axes = {axis: axes[axis] for axis in AXES if axis in axes}
    rows = product(*axes.values())
    return [Cell(**dict(zip(axes, row, strict=True)), simulate=simulate) for row in rows]


def names(cells: Sequence[Cell]) -> dict[tuple[str, str], str]:
    """Return a table's names of nets and machines, by kind and word: without folders if unique."""
    found: dict[tuple[str, str], str] = {}
    for kind in ("net", "machine"):
        words = dict.fromkeys(getattr(cell, kind) for cell in cells)
        short = {word: short_name(word) for word in words}
        several = Counter(short.values())
        for word, name in short.items():
            found[kind, word] = name if several[name] == 1 else word.removesuffix(".json")
    return found


def short_name(word: str) -> str:
    """Return the name of a net or machine, or of its file."""
    return word.rpartition("/")[2].removesuffix(".json")


def _words(value: Any, where: str) -> list[str]:
    """Return the values of an axis, each once; an inner list is one value of many parts."""
    several = value if isinstance(value, list | tuple) else [value]
    found = []
    for each in several:
        parts = each if isinstance(each, list | tuple) else [each]
        if not parts or not all(isinstance(p, str | int | float | Path) for p in parts):
            raise CommschedError(f"{where}: expected texts or numbers, got {each!r}")
        found.append(" ".join(str(part).strip() for part in parts))
    if not found or not all(found):
        raise CommschedError(f"{where}: the list is empty, or one of its values is; leave it out")
    return list(dict.fromkeys(found))


def _check(axes: Mapping[str, Sequence[str]], where: str) -> None:
    """Refuse names and values that no cell could use, before any work."""
    checks: dict[str, Callable[[str], object]] = {
        "net": net_file.load,
        "machine": machine_file.load,
        "nodes": _count,
        "ranks": _count,
        "bandwidth": lambda word: PORT.read(word, "bandwidth"),
        "strategy": _strategy,
        "planner": PLANNERS.__getitem__,
        "allow": lambda word: [lossy_name(name) for name in _parts(word)],
        "method": lambda word: [find_method(name) for name in _parts(word)],
        "compute": check_choice,
        "scale": lambda word: POSITIVE.read(word, "scale"),
        "density": lambda word: DENSITY.read(word, "density"),
    }
    for axis, words in axes.items():
        for word in words:
            if word == SAME and axis not in ("net", "machine", "strategy", "planner", "scale"):
                continue
            try:
                checks.get(axis, str)(word)
            except CommschedError as error:
                raise CommschedError(f"{where}: {error}") from None
    if {"nodes", "ranks"} <= axes.keys():
        raise CommschedError(f"{where}: nodes and ranks say the same; give one of them")


def _parts(word: str) -> tuple[str, ...]:
    return () if word == SAME else tuple(word.split())


def _count(word: str) -> int:
    if not (word.isascii() and word.isdecimal() and 0 < len(word) < 10 and int(word)):
        several = "; several are a list" if "," in word else ""
        raise CommschedError(f"nodes and ranks are whole numbers from 1 on, got {word!r}{several}")
    return int(word)


def _strategy(word: str) -> tuple[str, dict[str, Param]]:
    """Split the name of a strategy from its KEY=VALUE parameters."""
    name, *more = word.split() or [""]
    pairs = [each.partition("=") for each in more]
    wrong = next((key for key, equals, value in pairs if not (key and equals and value)), None)
    STRATEGIES[name]
    if wrong is not None:
        raise CommschedError(f"strategy {word!r}: expected NAME KEY=VALUE ..., got {wrong!r}")
    return name, {key: value for key, _, value in pairs}


@lru_cache(maxsize=2 * NEAR)
def machine_of(
    name: str, changes: str, nodes: str, ranks: str, bandwidth: str, content: str
) -> Machine:
    """Return a machine with its changes, of as many nodes or ranks, and with ports of a rate."""
    words = [] if changes == SAME else changes.split(";")
    found = changed(_machine(name, content), words)
    if nodes != SAME:
        found = resized(found, _count(nodes))
    elif ranks != SAME:
        found = of_ranks(found, _count(ranks))
    return found if bandwidth == SAME else changed(found, [f"nic={bandwidth}"])


@lru_cache(maxsize=NEAR)
def net_of(
    name: str,
    machine: str,
    changes: str,
    compute: str,
    scale: float,
    density: str,
    content: tuple[str, str],
) -> Net:
    """Return a net with the seconds of a machine's device, and with gradients of a density."""
    device = machine_of(machine, changes, SAME, SAME, SAME, content[1]).device
    known = _fitted(name, compute, scale, density, content[0])
    for other, net in known:
        if other == device:
            return net
    net = _net(name, content[0])
    net = fitted(net if scale == 1.0 else net.scaled(scale, 1.0), device, compute)
    if density != SAME:
        net = net.with_density(DENSITY.read(density, "density"))
    known.append((device, net))
    return net


@lru_cache(maxsize=NEAR)
def _fitted(
    name: str, compute: str, scale: float, density: str, content: str
) -> deque[tuple[Device, Net]]:
    """Return the last forms of a net, each with the device whose seconds it has."""
    return deque(maxlen=NEAR)


@lru_cache(maxsize=NEAR)
def _net(name: str, content: str) -> Net:
    return net_file.load(name)


@lru_cache(maxsize=NEAR)
def _machine(name: str, content: str) -> Machine:
    return machine_file.load(name)


@lru_cache(maxsize=256)
def _content(kind: str, name: str) -> str:
    return hashlib.sha256(files.read_bytes(shipped.path_of(kind, name))).hexdigest()
