"""A file's bytes, unpacked, within limits; and JSON in it, by types that ignore unknown keys."""

import gzip
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec

from commsched.errors import CommschedError

T = TypeVar("T")
MAX_BYTES = 2**30  # unpacked: a longer recording holds more steps than medians need
GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Content:
    """The bytes of a file; `where` names it in errors."""

    where: str
    data: bytes

    @cached_property
    def head(self) -> bytes:
        """Its first characters that are not blanks."""
        return self.data[:4096].lstrip()

    def decode(self, kind: type[T], what: str) -> T:
        """Read JSON; unknown keys are left out."""
        try:
            return msgspec.json.decode(self.data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
            said = str(error).splitlines()[0]
            raise CommschedError(
                f"{self.where}: not {what}: {said[:1].lower()}{said[1:]}"
            ) from None


def read(path: Path) -> Content:
    """Read a file, unpacking gzip; one that is larger than the limit is refused."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == GZIP
            file.seek(0)
            if packed:
                with gzip.open(file) as inner:
                    data = inner.read(MAX_BYTES + 1)
            else:
                data = file.read(MAX_BYTES + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CommschedError(f"{path}: a damaged gzip file: {error}") from None
    except OSError as error:
        raise CommschedError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_BYTES:
        raise CommschedError(
            f"{path}: more than {MAX_BYTES} bytes{' unpacked' * packed}; record fewer steps: 5 are"
            " enough"
        )
    if not data.strip():
        raise CommschedError(f"{path}: the file is empty")
    return Content(str(path), data)
