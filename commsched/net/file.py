"""Read and write net files: microseconds in the file, seconds inside."""

import json
from pathlib import Path
from typing import Any

from commsched import files, records, shipped
from commsched.net.graph import Net

FORMAT = Net.FORMAT


def load(name: str | Path) -> Net:
    """Read a shipped net by its name, or any net by its path."""
    return read(shipped.path_of("nets", str(name)))


def read(path: str | Path) -> Net:
    """Read a net file."""
    return from_data(files.parse(files.read_text(path), str(path)), str(path))


def write(path: str | Path, net: Net) -> None:
    """Write a net file, one layer a line."""
    data = to_data(net)
    layers = ",\n".join(f"  {json.dumps(layer)}" for layer in data.pop("layers"))
    head = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in data.items())
    files.write_bytes(path, f'{{\n{head} "layers": [\n{layers}\n ]\n}}\n'.encode())


def from_data(data: Any, where: str) -> Net:
    """Build a net from parsed JSON; `where` names the file in errors."""
    layers = data.get("layers") if isinstance(data, dict) else None
    if isinstance(layers, list):
        data = data | {"layers": _chained(layers)}
    return records.read(Net, data, where)


def to_data(net: Net) -> dict[str, Any]:
    """Turn a net into plain JSON data; `from_data` makes an equal net of it."""
    data = records.to_data(net)
    before: tuple[str, ...] = ()
    for layer in data["layers"]:
        if layer["after"] == before:
            del layer["after"]
        before = (layer["name"],)
    return data


def _chained(layers: list[Any]) -> list[Any]:
    """Add the key `after` to layers without it: the previous layer in the file."""
    found: list[Any] = []
    before: list[Any] = []
    for layer in layers:
        if isinstance(layer, dict):
            found.append({"after": before} | layer)
            before = [layer["name"]] if "name" in layer else []
        else:
            found.append(layer)
    return found
