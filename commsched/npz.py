"""Arrays in NumPy's npz format, checked by their headers before anything is inflated.

Headers are read in the one form that NumPy writes, and only of numbers and text: nothing is
evaluated or unpickled. Source: "NEP 1 - a simple file format for NumPy arrays".
"""

import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple

import numpy as np

from commsched.arrays import Array
from commsched.errors import CommschedError

SUFFIX = ".npy"
MAGIC = b"\x93NUMPY"
LONGEST_HEADER = 10_000  # B, of simple types
HEADER = re.compile(
    r"\{'descr': '(?P<type>[<>|][biufcU][0-9]{1,4})', 'fortran_order': (?P<columns>True|False),"
    r" 'shape': \((?P<shape>(?:[0-9]{1,18}, ?)*(?:[0-9]{1,18})?)\), \}\s*"
)
PACKED = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "deflated"}


class Entry(NamedTuple):
    """An array of a file: the content of its header, and the stream of its bytes."""

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    columns: bool  # column after column
    content: IO[bytes]

    @property
    def nbytes(self) -> int:
        """Return the bytes of the array."""
        return math.prod(self.shape) * self.dtype.itemsize

    def array(self) -> Array:
        """Read the array."""
        with _one_sentence():  # the end of the member is where the sum of its bytes is checked
            data = bytearray(self.content.read(self.nbytes + 1))
        values = np.frombuffer(data, self.dtype)
        return values.reshape(self.shape, order="F" if self.columns else "C")


def entries(file: IO[bytes], most: int, deflated: bool = True) -> Iterator[Entry]:
    """Yield the arrays of a file, at most `most` bytes together; an error is one sentence.

    Read each array before the next one is yielded.
    """
    with _one_sentence(), zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        _check(members, most, deflated)
        for member in members:
            with archive.open(member) as content:
                yield _entry(member, content)


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Say in one sentence what is wrong with an archive."""
    try:
        yield
    except CommschedError:  # which is a ValueError
        raise
    except zipfile.BadZipFile:
        raise CommschedError("not an npz file, which numpy.savez writes, or a broken one") from None
    except (ValueError, EOFError, RuntimeError, struct.error, zlib.error) as failure:
        # RuntimeError: a member is encrypted, or needs a newer zip
        why = str(failure).partition("\n")[0]
        raise CommschedError(f"not an npz file of numbers: {why}") from None


def _check(members: list[zipfile.ZipInfo], most: int, deflated: bool) -> None:
    """Refuse members that are no arrays, occur twice, or are too large."""
    seen: set[str] = set()
    for member in members:
        name = member.filename
        if not name.endswith(SUFFIX):
            raise CommschedError(f"{name!r} is not an array; only arrays are allowed")
        if name in seen:
            raise CommschedError(f"array {name.removesuffix(SUFFIX)!r} is in the file twice")
        seen.add(name)
        if member.compress_type not in PACKED or (member.compress_type and not deflated):
            raise CommschedError(f"array {name.removesuffix(SUFFIX)!r} is packed in another way")
    size = sum(member.file_size for member in members)
    if size > most:
        raise CommschedError(f"holds {size} B, at most {most} are allowed")


def _entry(member: zipfile.ZipInfo, content: IO[bytes]) -> Entry:
    name = member.filename.removesuffix(SUFFIX)
    start = content.read(len(MAGIC) + 2)
    if start[: len(MAGIC)] != MAGIC or start[-2:] not in (b"\1\0", b"\2\0", b"\3\0"):
        raise CommschedError(f"not an npz file of numbers: {name!r} is no array")
    width, form = (2, "<H") if start[-2] == 1 else (4, "<I")
    (length,) = struct.unpack(form, content.read(width))
    found = HEADER.fullmatch(content.read(min(length, LONGEST_HEADER)).decode("latin-1"))
    if found is None or length > LONGEST_HEADER:
        raise CommschedError(f"not an npz file of numbers: array {name!r} holds others")
    try:
        dtype = np.dtype(found["type"])
    except TypeError:
        raise CommschedError(f"not an npz file of numbers: {found['type']!r} is no type") from None
    shape = tuple(int(word) for word in found["shape"].split(",") if word.strip())
    entry = Entry(name, dtype, shape, found["columns"] == "True", content)
    inside = member.file_size - len(start) - width - length
    if entry.nbytes != inside:
        raise CommschedError(
            f"not an npz file of numbers: array {name!r} has {list(shape)} of {dtype} by its"
            f" header, but {inside} B follow"
        )
    return entry
