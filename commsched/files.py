"""Strict JSON files: typed, no duplicates, no NaN; written under another name, then renamed.

Only regular files are read, and stdin for the path `-`. Writing follows links; it accepts regular
files, the null device and pipes, and refuses anything else that exists. A file whose name ends in
.gz is packed and unpacked by gzip.
"""

import errno
import gzip
import json
import math
import os
import re
import stat
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar, cast

import msgspec
import msgspec.inspect

from commsched.errors import CommschedError
from commsched.terminal import printable

T = TypeVar("T")
_PREPARING = threading.Lock()  # msgspec crashes where two threads meet a type for the first time

SHOWN = 40  # characters of a wrong value
WRITERS = {  # kind of file -> the command that writes it
    "plan": "`commsched plan` writes plans",
    "timeline": "`commsched simulate` and `commsched run` write timelines",
}
DIGITS = 300  # most digits of a whole number, as many as a float can have
MAX_BYTES = 2**30  # most bytes of a file that is read in pieces
MAX_TEXT = 2**27  # most bytes of JSON that is read at once, in up to 30 times as much memory
CHUNK = 2**20  # B that are read at once
PACKED = ".gz"  # the end of the name of a file that is packed by gzip
MAX_PACKED = 2**33  # most bytes of an unpacked timeline
STDIN = "-"
KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def _reject_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number; use a finite value")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"number {text[:SHOWN]} is out of range; use a finite value")
    return value


def _whole(text: str) -> int:
    if len(text) > DIGITS:
        raise ValueError(f"number {text[:SHOWN]}... is out of range: at most {DIGITS} digits")
    return int(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice!r} stands twice in one object")
    return found


def parse(text: str | bytes, where: str) -> Any:
    """Parse strict JSON; `where` names the file in errors."""
    try:
        data = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_reject_constant,
            parse_float=_finite,
            parse_int=_whole,
        )
        escaped = "\\u" in text if isinstance(text, str) else b"\\u" in text
        if escaped:  # an escape may be half a character, which nothing can print
            json.dumps(data, ensure_ascii=False).encode()
        return data
    except RecursionError:
        raise CommschedError(f"{where}: nested too deeply; see models/README.md") from None
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise CommschedError(f"{where}: not valid JSON: {error}") from None


def convert(data: Any, kind: type[T], where: str) -> T:
    """Check `data` against the msgspec type `kind`; unknown keys are refused by the type."""
    with _PREPARING:
        msgspec.msgpack.Decoder(kind)
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        formats = [
            v for each in _types(msgspec.inspect.type_info(kind), ["format"]) for v in _values(each)
        ]
        check_kind(data, next(map(kind_of, formats), ""), where)
        message = str(error).replace("Object ", "").replace("`$", "`")
        more = _more(str(error), data, kind)
        told = printable(f"{message[:1].lower()}{message[1:]}{more}")
        raise CommschedError(f"{where}: {told}") from None
    except CommschedError as error:  # from the __post_init__ of a dataclass inside `kind`
        raise CommschedError(f"{where}: {error}") from None


def check_kind(data: Any, wanted: str, where: str) -> None:
    """Refuse one of our files of another kind than `wanted`, such as a machine for a plan."""
    text = data.get("format") if isinstance(data, dict) else ""
    if isinstance(data, dict) and isinstance(data.get("otherData"), dict):
        text = data["otherData"].get("format")  # of a timeline
    found = kind_of(text)
    if found and wanted and found != wanted:
        more = f"; {WRITERS[wanted]}" if wanted in WRITERS else ""
        raise CommschedError(f"{where}: this is a {found} file, and a {wanted} is expected{more}")


def kind_of(text: object) -> str:
    """Return the kind of file that a `format` such as "commsched-plan/1" names; "" for others."""
    found = re.fullmatch(r"commsched-([a-z]+)/[0-9]+", text) if isinstance(text, str) else None
    return found[1] if found else ""


def _values(kind: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = getattr(kind, "values", ())
    return found


def _more(message: str, data: Any, kind: Any) -> str:
    """Return what msgspec's message leaves out: the refused value, or the allowed values."""
    place = re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", message.partition(" - at `$")[2])
    steps = [key or index for key, index in place]
    for step in steps:
        if isinstance(data, dict):
            data = data.get(step)
        elif isinstance(data, list) and step.isdecimal():
            data = data[int(step)]
    types = _types(msgspec.inspect.type_info(kind), steps)
    allowed: list[str] = []
    if "unknown field" in message:
        allowed = [field.encode_name for each in types for field in getattr(each, "fields", ())]
    elif message.startswith("Invalid"):
        allowed = [repr(value) for each in types for value in _values(each)]
    if allowed:
        return f"; allowed: {', '.join(dict.fromkeys(allowed))}"
    scalar = isinstance(data, str | int | float) and not message.startswith("Invalid")
    return f"; it is {json.dumps(data)[:SHOWN]}" if scalar else ""


def _types(kind: Any, steps: list[str]) -> list[Any]:
    """List the types that a described type allows at a place, `steps` of fields and indices."""
    if hasattr(kind, "extra_json_schema"):  # a type with limits
        return _types(kind.type, steps)
    if hasattr(kind, "types"):  # a union
        return [found for each in kind.types for found in _types(each, steps)]
    if not steps:
        return [kind]
    step, *rest = steps
    inner = [field.type for field in getattr(kind, "fields", ()) if field.encode_name == step]
    inner += [getattr(kind, name) for name in ("item_type", "value_type") if hasattr(kind, name)]
    if step.isdecimal():
        inner += getattr(kind, "item_types", ())[int(step) : int(step) + 1]
    return [found for each in inner for found in _types(each, rest)]


@contextmanager
def opened(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a regular file, or stdin for `-`, to read; an error says in one sentence why not."""
    try:
        if str(path) == STDIN:
            yield sys.stdin.buffer
            return
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a device may start something
            raise CommschedError(f"{path}: cannot be read: {_not_regular(path, 'read')}")
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # exchanged meanwhile
                raise CommschedError(f"{path}: cannot be read: {_not_regular(path, 'read')}")
            yield file
    except OSError as error:
        raise CommschedError(f"{path}: cannot be read: {error.strerror or error}") from None


@contextmanager
def unpacked(path: str | Path, most: int = MAX_PACKED) -> Iterator[IO[bytes]]:
    """Open a file like `opened`; unpack it first if its name is that of a gzip file."""
    with opened(path) as file:
        if not _is_packed(path, file):
            yield file
            return
        from tempfile import TemporaryFile  # here: ranks start sooner without it

        with TemporaryFile() as whole:
            try:
                with gzip.GzipFile(fileobj=file) as inner:
                    while chunk := inner.read(CHUNK):
                        whole.write(chunk)
                        if whole.tell() > most:
                            raise CommschedError(f"{path}: more than {most} bytes unpacked")
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise CommschedError(f"{path}: a damaged gzip file: {error}") from None
            whole.seek(0)
            yield whole


def stem(path: Path) -> str:
    """Return the name of a file without its ending, .gz apart; that of stdin is stdin."""
    return "stdin" if str(path) == STDIN else Path(path.name.removesuffix(PACKED)).stem


def _is_packed(path: str | Path, file: IO[bytes]) -> bool:
    return str(path).endswith(PACKED) and cast(BufferedReader, file).peek(2)[:2] == b"\x1f\x8b"


def _not_regular(path: str | Path, verb: str) -> str:
    kind = stat.S_IFMT(os.stat(path).st_mode)
    if kind == stat.S_IFDIR:
        return os.strerror(errno.EISDIR)
    stdin = f", and stdin as {STDIN}" if verb == "read" else ""
    return f"Is {KINDS.get(kind, 'no file')}; only regular files are {verb}{stdin}"


def read_bytes(path: str | Path, most: int = MAX_BYTES, unpack: bool = True) -> bytes:
    """Return the content of a file, or raise an error that says in one sentence why not."""
    content = bytearray()
    with unpacked(path, most) if unpack else opened(path) as file:
        while chunk := file.read(CHUNK):
            content += chunk
            if len(content) > most:
                raise CommschedError(f"{path}: larger than {most} bytes, which is the most allowed")
    return bytes(content)


def head(path: str | Path, count: int) -> bytes:
    """Return the first bytes of a regular file; none of stdin, and none of what cannot be read."""
    if str(path) == STDIN:
        return b""
    try:
        with opened(path) as file:
            if _is_packed(path, file):
                return gzip.GzipFile(fileobj=file).read(count)
            return file.read(count)
    except (CommschedError, EOFError, gzip.BadGzipFile, zlib.error):
        return b""  # whoever reads the file says why not


def read_text(path: str | Path, most: int = MAX_TEXT) -> str:
    """Return the text of a file, or raise an error that says in one sentence why not."""
    try:
        return read_bytes(path, most).decode()
    except UnicodeDecodeError:
        raise CommschedError(f"{path}: not a text file; UTF-8 is expected") from None


def read(path: str | Path, kind: type[T]) -> T:
    """Read a strict JSON file as `kind`."""
    return convert(parse(read_text(path), str(path)), kind, str(path))


@contextmanager
def writing(path: str | Path) -> Iterator[IO[bytes]]:
    """Write under a temporary name in the same folder, then rename: never a torn file.

    A link stays, and its target is written. The null device and pipes are written directly.
    """
    try:
        target = _target(Path(path))
        if target is None:
            with _special(path) as file:
                yield file
            return
        from tempfile import mkstemp  # see `unpacked`

        handle, temporary = mkstemp(dir=target.parent, prefix=f".{target.name[:200]}.")
        try:
            with os.fdopen(handle, "wb") as file:
                if target.name.endswith(PACKED):
                    with gzip.GzipFile("", "wb", 6, file, mtime=0) as inner:
                        yield cast(IO[bytes], inner)
                else:
                    yield file
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)
            os.replace(temporary, target)
        except BaseException:
            with suppress(FileNotFoundError):  # renamed just before an interrupt
                os.unlink(temporary)
            raise
    except OSError as error:
        raise CommschedError(f"{path}: cannot be written: {error.strerror or error}") from None


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a whole file; see `writing`."""
    with writing(path) as file:
        file.write(content)


def open_to_append(path: Path, fresh: bool = False) -> IO[bytes]:
    """Open an unbuffered file to append to, as `writing` would write it; `fresh`: emptied."""
    try:
        if _target(path) is None:
            return _special(path)
        return path.open("wb" if fresh else "ab", buffering=0)
    except OSError as error:
        raise CommschedError(f"{path}: cannot be written: {error.strerror or error}") from None


def is_special(path: str | Path) -> bool:
    """Tell whether a path is the null device or a pipe, in whose folder no files belong."""
    try:
        return _target(Path(path)) is None
    except OSError as error:
        raise CommschedError(f"{path}: cannot be written: {error.strerror or error}") from None


def _target(path: Path) -> Path | None:
    """Return the file that a rename replaces, links resolved; None for the null device and pipes.

    Anything else that exists is refused, since a rename would remove it.
    """
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return Path(os.path.realpath(path))
    if stat.S_ISREG(found.st_mode):
        return Path(os.path.realpath(path))
    null = stat.S_ISCHR(found.st_mode) and found.st_rdev == os.stat(os.devnull).st_rdev
    if null or stat.S_ISFIFO(found.st_mode):
        return None
    raise OSError(errno.EINVAL, _not_regular(path, "written"))


def _special(path: str | Path) -> IO[bytes]:
    """Open the null device, or a pipe that someone reads."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(error.errno, "nobody reads the pipe") from None
        raise
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "wb", buffering=0)


def write(path: str | Path, data: Any) -> None:
    """Write `data` as indented JSON."""
    write_bytes(path, msgspec.json.format(msgspec.json.encode(data), indent=1) + b"\n")


def check_writable(path: Path) -> None:
    """Refuse a path that cannot be written, before the work starts."""
    why = ""
    try:
        target = _target(path)
        good = target is None or (target.parent.is_dir() and os.access(target.parent, os.W_OK))
    except OSError as error:
        good, why = False, f": {error.strerror}"
    if not good:
        told = "cannot be written there; give a file in a writable folder"
        raise CommschedError(f"{path}: {told}{why}")


def make_folder(path: str | Path) -> None:
    """Make a writable folder and the folders above it; keep existing ones."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError(None, "no permission to write there")
    except OSError as error:
        raise CommschedError(f"{path}: cannot be made: {error.strerror or error}") from None
