"""Nested dictionaries of arrays and numbers as one npz file, which nothing unpickles."""

import io
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from commsched import files
from commsched.arrays import Array
from commsched.errors import CommschedError

TREE = "tree"  # the array that holds the structure, as JSON


def packed(values: Mapping[str, Any]) -> bytes:
    """Arrays, numbers and tuples of them, in nested dictionaries, as the content of a file."""
    arrays: list[Array] = []
    tree = msgspec.json.encode(_tree(values, arrays))
    named = {str(i): array for i, array in enumerate(arrays)}
    content = io.BytesIO()
    np.savez(content, **{TREE: np.frombuffer(tree, np.uint8)}, **named)  # type: ignore[arg-type]
    return content.getvalue()


def _tree(value: Any, arrays: list[Array]) -> list[Any]:
    """What a value is, and where its parts are; arrays are moved to `arrays`."""
    if isinstance(value, Mapping):
        return ["dict", {key: _tree(inner, arrays) for key, inner in value.items()}]
    if isinstance(value, tuple):
        return ["tuple", [_tree(inner, arrays) for inner in value]]
    if type(value) is int:
        return ["int", value]
    kind = "float" if type(value) is float else "array"
    assert kind == "float" or isinstance(value, np.ndarray), type(value)
    arrays.append(np.asarray(value))
    return [kind, len(arrays) - 1]


def unpacked(content: bytes, where: str) -> dict[str, Any]:
    """What `packed` was given; `where` names the file in errors."""
    wrong = CommschedError(f"{where}: not a checkpoint of commsched, or a broken one")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            tree = files.parse(found[TREE].tobytes(), where)
            value = _value(tree, {name: found[name] for name in found.files})
    except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile):
        raise wrong from None
    except (RuntimeError, zlib.error):  # bits that ask for a password, or for another compression
        raise wrong from None
    if not isinstance(value, dict):
        raise wrong
    return value


def _value(tree: Any, arrays: Mapping[str, Array]) -> Any:
    kind, inner = tree
    if kind == "dict":
        return {key: _value(part, arrays) for key, part in inner.items()}
    if kind == "tuple":
        return tuple(_value(part, arrays) for part in inner)
    if kind == "int" and type(inner) is int:
        return inner
    if kind not in ("float", "array"):
        raise ValueError(kind)
    return float(arrays[str(inner)]) if kind == "float" else arrays[str(inner)]
