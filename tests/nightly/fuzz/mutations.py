"""Ways to break a file: its values, its bytes, its kind."""

import io
import json
import os
import random
import socket
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from commsched.records import digest

Mutation = Callable[[random.Random, bytes], bytes]

WRONG_TYPES = (
    None,
    True,
    False,
    -1,
    0,
    1,
    2,
    0.5,
    -0.5,
    "",
    "x",
    [],
    [1],
    {},
    {"a": 1},
    [[]],
    [{}],
)
NUMBERS = (2**31, 2**53, 2**63, 2**64, 10**30, -(10**30), 1e300, -1e300, 5e-324, 1e12, -0.0)
WORDS = ("x" * 1000, "a\nb", "\x1b[31mred", "\x07\x7f\x9b", "\u202e", "NaN", "../..", "-", "1e9 us")
METHODS = ("topk:2", "gtopk:0", "powersgd:1e9", "ring+", "+", "ring+topk:0.1", "quant:", "native+x")
TEXTS = (
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e999",
    b"1" * 400,
    b'"\\ud800"',
    b'"\\u0000"',
    b"0x1",
)


def _places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All places of a tree but its root; of long lists the first and the last ones."""
    found = []
    if isinstance(tree, dict):
        keys: list[Any] = list(tree)
    else:
        count = len(tree) if isinstance(tree, list) else 0
        keys = sorted({*range(min(count, 3)), *range(max(count - 2, 0), count)})
    for key in keys:
        found += [(*path, key), *_places(tree[key], (*path, key))]
    return found


def _changed(rng: random.Random, content: bytes, change: Callable[[Any, Any], None]) -> bytes:
    """Change a place of the JSON in a file, of one line if each has its own; correct a hash."""
    text = content.decode()
    try:
        tree, at, lines = json.loads(text), 0, []
    except ValueError:
        lines = text.splitlines()
        at = rng.randrange(len(lines))
        tree = json.loads(lines[at])
    if not (places := _places(tree)):
        return content
    *path, key = rng.choice(places)
    node = tree
    for step in path:
        node = node[step]
    change(node, key)
    if isinstance(tree, dict) and "hash" in tree and "launches" in tree and rng.random() < 0.8:
        tree["hash"] = digest(tree)
    new = json.dumps(tree)
    return "\n".join([*lines[:at], new, *lines[at + 1 :], ""] if lines else [new]).encode()


def values(among: tuple[Any, ...]) -> Mutation:
    """Another value somewhere."""

    def mutate(rng: random.Random, content: bytes) -> bytes:
        def change(node: Any, key: Any) -> None:
            node[key] = rng.choice(among)

        return _changed(rng, content, change)

    return mutate


def keys(rng: random.Random, content: bytes) -> bytes:
    """A key or an item is gone, or one too many."""

    def change(node: Any, key: Any) -> None:
        if rng.random() < 0.5:
            del node[key]
        elif isinstance(node, dict):
            node[rng.choice([*WORDS, "Format", ""])] = node[key]
        else:
            node.append(node[key])

    return _changed(rng, content, change)


def numbers(rng: random.Random, content: bytes) -> bytes:
    """A number is scaled or shifted."""

    def change(node: Any, key: Any) -> None:
        if isinstance(node[key], int | float):
            node[key] = rng.choice([-1, 0, 1e-9, 1e3, 1e9, 1e18]) * node[key]
        else:
            node[key] = rng.choice(NUMBERS)

    return _changed(rng, content, change)


def methods(rng: random.Random, content: bytes) -> bytes:
    """Another method, codec or kind where a text stood."""

    def change(node: Any, key: Any) -> None:
        node[key] = rng.choice([*METHODS, "ring+dense", "zen", "all-gather+topk:0.01"])

    return _changed(rng, content, change)


def raw(rng: random.Random, content: bytes) -> bytes:
    """What JSON has no value for, in place of a number or at any place."""
    at = rng.randrange(len(content) + 1)
    end = at
    while end < len(content) and content[end] in b"0123456789.eE-+":
        end += 1
    return content[:at] + rng.choice(TEXTS) + content[end:]


def twice(rng: random.Random, content: bytes) -> bytes:
    """A key stands twice, or the whole file does."""
    at = content.find(b"{", rng.randrange(len(content)))
    if at < 0 or rng.random() < 0.1:
        return content + content
    end = content.find(b",", at)
    return content[: end + 1] + content[at + 1 : end + 1] + content[end + 1 :]


def nested(rng: random.Random, content: bytes) -> bytes:
    """Lists or objects in each other, closed or not."""
    depth = rng.choice([10, 500, 2_000, 100_000])
    start, end = rng.choice([(b"[", b"]"), (b'{"a":', b"}")])
    deep = start * depth + b"1" + end * (depth if rng.random() < 0.5 else 0)
    at = content.find(b":", rng.randrange(len(content) + 1)) + 1
    return deep if at == 0 else content[:at] + deep + content[content.find(b",", at) :]


def truncated(rng: random.Random, content: bytes) -> bytes:
    """The end is gone, or the start."""
    at = rng.randrange(len(content))
    return content[:at] if rng.random() < 0.8 else content[at:]


def flipped(rng: random.Random, content: bytes) -> bytes:
    """Some bytes are others."""
    found = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
        found[rng.randrange(len(found))] = rng.randrange(256)
    return bytes(found)


def control(rng: random.Random, content: bytes) -> bytes:
    """Control characters where they stand in the file as they are."""
    at = rng.randrange(len(content))
    return (
        content[:at] + rng.choice([b"\0", b"\x1b[2J", b"\r", b"\x7f", b"\xc2\x9b"]) + content[at:]
    )


def binary(rng: random.Random, content: bytes) -> bytes:
    """Bytes without meaning, or nothing."""
    return rng.randbytes(rng.choice([0, 1, 10, 1_000]))


def encoded(rng: random.Random, content: bytes) -> bytes:
    """Another encoding, or a mark of one."""
    text = content.decode("latin-1")
    code = rng.choice(["utf-16", "utf-16-le", "utf-32", "utf-8-sig", "utf-7", "cp037"])
    return text.encode(code, "replace")


def joined(rng: random.Random, content: bytes) -> bytes:
    """Lines in another order, or more than once."""
    lines = content.splitlines(keepends=True)
    return b"".join(rng.choices(lines, k=rng.randrange(2 * len(lines) + 1)))


ANYTHING: tuple[Mutation, ...] = (truncated, flipped, control, binary, encoded, joined)
JSON: tuple[Mutation, ...] = (
    *(values(WRONG_TYPES), values(NUMBERS), values(WORDS), keys, numbers, methods),
    *(values(WRONG_TYPES), keys, numbers, raw, twice, nested),
    *ANYTHING,
)

SHAPES = (
    "(8, True)",
    "(12345678901234567890, 2)",
    "()",
    "(-1, 4)",
    "(4, 1000000000000000)",
    "(4,",
    "[4]",
)
TYPES = ("'|O'", "'<f3'", "'<U99999'", "'|V8'", "[('a', '<f4')]", "'<M8[s]'", "__import__('os')")


def header(rng: random.Random, content: bytes) -> bytes:
    """The header of an array says something else, or is no Python."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        chosen = rng.choice(old.namelist())
        for name in old.namelist():
            data = old.read(name)
            new.writestr(zipfile.ZipInfo(name), _header(rng, data) if name == chosen else data)
    return out.getvalue()


def _header(rng: random.Random, data: bytes) -> bytes:
    (length,) = struct.unpack("<H", data[8:10])
    text, body = data[10 : 10 + length].decode("latin-1"), data[10 + length :]
    start, shape, end = text.partition("'shape': ")
    kind = rng.randrange(6)
    if kind == 0:
        text = f"{start}{shape}{rng.choice(SHAPES)}{end[end.find(')') + 1 :]}"
    elif kind == 1:
        text = text[:10] + rng.choice(TYPES) + text[text.find(",") :]
    elif kind == 2:
        text = text.replace("}", rng.choice(["}}", "", "})", "{" * 50]))
    elif kind == 3:
        text = flipped(rng, text.encode("latin-1")).decode("latin-1")
    elif kind == 4:
        text = text[: rng.randrange(len(text))]
    else:
        return bytes(data[:6]) + rng.randbytes(rng.choice([0, 2, 4])) + data[8:]
    return data[:8] + struct.pack("<H", len(text)) + text.encode("latin-1") + body


def members(rng: random.Random, content: bytes) -> bytes:
    """Members of an archive have other names, sizes or ways of packing."""
    out = io.BytesIO()
    packing = rng.choice(
        [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
    )
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w", packing) as new:
        warnings.simplefilter("ignore")  # of names that stand twice
        for name in old.namelist():
            other = rng.choice([name, name, "../x.npy", "\x1b[2J.npy", "x", name[:-4], "a" * 1000])
            data = bytes(rng.choice([0, 100, 10**7])) if rng.random() < 0.2 else old.read(name)
            new.writestr(other, data)
    return out.getvalue()


NPZ: tuple[Mutation, ...] = (header, header, header, members, *ANYTHING, flipped, flipped, flipped)


SPECIAL = ("missing", "folder", "pipe", "socket", "loop", "/dev/zero", "/dev/null", "/proc")


def make_special(path: Path, kind: str) -> None:
    """Make a special file of a kind."""
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind != "missing":
        path.symlink_to(kind)
