"""Nested dictionaries of arrays and numbers as one npz file, which is read without pickle."""

import io
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from commsched import npz
from commsched.arrays import Array
from commsched.errors import CommschedError

KEYS, LENGTH = "{", "("  # end the path of a dictionary and of a tuple; quoted keys contain neither


def packed(values: Mapping[str, Any]) -> bytes:
    """Write nested dictionaries of arrays, numbers and tuples of them as a file's content."""
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **dict(_arrays("", values)))
    return content.getvalue()


def _arrays(path: str, value: Any) -> Iterator[tuple[str, Array]]:
    """Map every part of a value by its path, such as /buckets/b0/lost; numbers have no axes."""
    if isinstance(value, Mapping):
        names = [quote(key, safe="") for key in value]
        yield path + KEYS, np.array(names, str)
        parts: Iterator[tuple[str, Any]] = zip(names, value.values(), strict=True)
    elif isinstance(value, tuple):
        yield path + LENGTH, np.array(len(value))
        parts = ((str(i), part) for i, part in enumerate(value))
    else:
        assert type(value) in (int, float, np.ndarray), type(value)
        yield path, np.asarray(value)
        return
    for name, part in parts:
        yield from _arrays(f"{path}/{name}", part)


def unpacked(content: bytes, where: str) -> dict[str, Any]:
    """Return the argument of `packed` from its result; `where` names the file in errors."""
    try:
        found = npz.entries(io.BytesIO(content), len(content), deflated=False)
        value = _value("", {entry.name: entry.array() for entry in found})
        assert isinstance(value, dict)
        return value
    except (ValueError, KeyError, TypeError, AssertionError, CommschedError):
        raise CommschedError(f"{where}: not a checkpoint of commsched, or a broken one") from None


def _value(path: str, arrays: Mapping[str, Array]) -> Any:
    if path + KEYS in arrays:
        names = arrays[path + KEYS].tolist()
        return {unquote(name): _value(f"{path}/{name}", arrays) for name in names}
    if path + LENGTH in arrays:
        return tuple(_value(f"{path}/{i}", arrays) for i in range(int(arrays[path + LENGTH])))
    array = arrays[path]
    return array if array.ndim else array.item()
