"""Strict JSON files: typed, no duplicates, no NaN; written under another name, then renamed."""

import json
import math
import os
import re
import tempfile
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
import msgspec.inspect

from commsched.errors import CommschedError

T = TypeVar("T")

SHOWN = 40  # characters of a wrong value
DIGITS = 300  # of a whole number, as many as a float can have
MAX_BYTES = 2**30  # a net, machine, plan or timeline beyond 1 GiB is a mistake


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
        if escaped:  # it may hide half a character, which nothing can print
            msgspec.json.encode(data)
        return data
    except RecursionError:
        raise CommschedError(f"{where}: nested too deeply; see models/README.md") from None
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise CommschedError(f"{where}: not valid JSON: {error}") from None


def convert(data: Any, kind: type[T], where: str) -> T:
    """Check `data` against the msgspec type `kind`; unknown keys are refused by the type."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        message = str(error).replace("Object ", "").replace("`$", "`")
        more = _more(str(error), data, kind)
        raise CommschedError(f"{where}: {message[:1].lower()}{message[1:]}{more}") from None
    except CommschedError as error:  # from the __post_init__ of a dataclass inside `kind`
        raise CommschedError(f"{where}: {error}") from None


def _more(message: str, data: Any, kind: Any) -> str:
    """What msgspec's message leaves out: the value that it refuses, or what would be allowed."""
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
        allowed = [repr(value) for each in types for value in getattr(each, "values", ())]
    if allowed:
        return f"; allowed: {', '.join(dict.fromkeys(allowed))}"
    scalar = isinstance(data, str | int | float) and not message.startswith("Invalid")
    return f"; it is {json.dumps(data)[:SHOWN]}" if scalar else ""


def _types(kind: Any, steps: list[str]) -> list[Any]:
    """The types that a described type may have at a place, given as fields and indices."""
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


def read_text(path: str | Path) -> str:
    """Return the text of a file, or one sentence that says why not."""
    path = Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CommschedError(
                f"{path}: larger than {MAX_BYTES} bytes, which is the most allowed"
            )
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CommschedError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise CommschedError(f"{path}: not a text file; UTF-8 JSON is expected") from None


def read(path: str | Path, kind: type[T]) -> T:
    """Read a strict JSON file as `kind`."""
    return convert(parse(read_text(path), str(path)), kind, str(path))


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write under a temporary name in the same folder, then rename: never a torn file."""
    path = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise CommschedError(f"{path}: cannot be written: {error.strerror or error}") from None


def write(path: str | Path, data: Any) -> None:
    """Write `data` as indented JSON."""
    write_bytes(path, msgspec.json.format(msgspec.json.encode(data), indent=1) + b"\n")


def check_writable(path: Path) -> None:
    """Refuse a path that cannot be written, before the work starts."""
    folder = path.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK) or path.is_dir():
        raise CommschedError(f"{path}: cannot be written there; give a file in a writable folder")


def make_folder(path: str | Path) -> None:
    """Make a folder that can be written, and those above it; one that is there stays."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError(None, "no permission to write there")
    except OSError as error:
        raise CommschedError(f"{path}: cannot be made: {error.strerror or error}") from None
