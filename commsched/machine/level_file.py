"""Levels in a machine file: the list `levels` stands for counts, links, ports and overrides."""

from math import prod
from typing import Any

from commsched import records
from commsched.errors import CommschedError
from commsched.machine.level import Level, place_of_node
from commsched.machine.model import Machine

REPLACED = ("nodes", "lanes", "links", "nic", "overrides")


def flattened(data: Any, where: str) -> Any:
    """Add the keys that follow from the list `levels` of a file; other data stays as it is.

    If the last units are partly filled, the file may have `nodes` in addition to `levels`.
    """
    if not isinstance(data, dict) or not data.get("levels") or "links" in data:
        return data
    levels = _read(data["levels"], where)
    twice = [key for key in (*REPLACED[1:], "node_of_rank") if key in data]
    if twice:
        raise CommschedError(f"{where}: `levels` say what key {twice[0]!r} says; give one of them")
    node = place_of_node(levels)
    outer = data["levels"][min(node + 1, len(levels) - 1)]
    flat = {
        "nodes": prod(level.children for level in levels[node + 1 :]),
        **data,
        "lanes": prod(level.children for level in levels[: node + 1]),
        "links": {"inside": data["levels"][node]["link"], "between": outer["link"]},
    }
    if node + 1 < len(levels):
        if "nic" in outer:
            flat["nic"] = outer["nic"]
        slow = outer.get("overrides", [])
        flat["overrides"] = [{"node": o["child"], "between": o["link"]} for o in slow]
    return flat


def _read(rows: Any, where: str) -> list[Level]:
    """Read the levels, so that an error names the place in the list."""
    if not isinstance(rows, list):
        raise CommschedError(f"{where}: key 'levels' is a list of levels, inside out")
    for number, row in enumerate(rows):
        if isinstance(row, dict) and row.get("link") is None:
            name = row.get("name", "")
            raise CommschedError(
                f"{where}: levels[{number}] {name!a} has no link: its children could not reach each"
                ' other; give "link": {"latency_us": ..., "overhead_us": ..., "bandwidth_GBps":'
                ' ..., "source": "..."}'
            )
    return [records.read(Level, row, f"{where}: levels[{k}]") for k, row in enumerate(rows)]


def levelled(data: dict[str, Any], machine: Machine) -> dict[str, Any]:
    """Reverse `flattened`."""
    if not machine.levels:
        return data
    node = place_of_node(machine.levels)
    rows = data["levels"]
    rows[node]["link"] = data["links"]["inside"]
    if node + 1 < len(rows):
        rows[node + 1]["link"] = data["links"]["between"]
        rows[node + 1]["nic"] = data.get("nic")
    whole = prod(level.children for level in machine.levels[node + 1 :])
    kept = {key: value for key, value in data.items() if key not in REPLACED}
    if machine.nodes != whole:
        kept["nodes"] = machine.nodes
    return kept
