"""The unpacked bytes of an input file, limited in size, and their JSON as typed objects."""

import gzip
import io
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec

from commsched import files
from commsched.errors import CommschedError

T = TypeVar("T")
MAX_BYTES = 2**29  # unpacked; decoding takes about five times this memory; a few steps need less
GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Content:
    """The bytes of a file; `where` names it in errors."""

    where: str
    data: bytes

    @cached_property
    def head(self) -> bytes:
        """The first characters of the file after leading blanks."""
        return self.data[:4096].lstrip()

    def decode(self, kind: type[T], what: str) -> T:
        """Decode the JSON into a type; unknown keys are ignored."""
        try:
            return msgspec.json.decode(self.data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
            said = str(error).splitlines()[0]
            raise CommschedError(
                f"{self.where}: not {what}: {said[:1].lower()}{said[1:]}"
            ) from None


def read(path: Path) -> Content:
    """Read a file and unpack gzip; raise an error if the result exceeds `MAX_BYTES`."""
    data = files.read_bytes(path, MAX_BYTES, unpack=False)
    if data.startswith(GZIP):
        try:
            with gzip.open(io.BytesIO(data)) as inner:
                data = inner.read(MAX_BYTES + 1)
        except (EOFError, OSError, zlib.error) as error:
            raise CommschedError(f"{path}: a damaged gzip file: {error}") from None
    if len(data) > MAX_BYTES:
        raise CommschedError(
            f"{path}: more than {MAX_BYTES} bytes unpacked; record fewer steps: 5 are enough"
        )
    if not data.strip():
        raise CommschedError(f"{path}: the file is empty")
    return Content(str(path), data)
