"""The log of a training: a header, then a line of JSON per step and per score of held-out data."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from commsched import files
from commsched.errors import CommschedError

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Positive = Annotated[float, msgspec.Meta(ge=0)]


class LogHeader(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="training"
):
    """The training of the log; `made`: everything that decides the result, by its flag."""

    format: Literal["commsched-log/1"] = "commsched-log/1"
    net: str
    strategy: str
    plan: str  # hash
    ranks: Annotated[int, msgspec.Meta(ge=1)]
    made: dict[str, str | int | float | bool]


class LogRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="step"):
    """One step, over all ranks; a loss that is not finite is null."""

    step: Count
    loss: float | None  # mean cross-entropy of the step's batch, before its update, nats
    accuracy: Share
    seconds: Positive  # on rank 0, without what came between the steps
    sent_bytes: Count  # by rank 0
    skipped: bool = False  # a 16-bit gradient overflowed


class HeldOutRow(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="held out"
):
    """The loss and accuracy on held-out samples after a step."""

    step: Count
    loss: float | None
    accuracy: Share


Line = LogHeader | LogRow | HeldOutRow


class TrainingLog:
    """Appends lines to a file, each handed to the operating system at once."""

    def __init__(self, path: Path, header: LogHeader, resume_at: int | None = None) -> None:
        """Begin a new log, or continue one of the same training at step `resume_at`."""
        kept: list[Line] = [header]
        if resume_at is not None and path.is_file():
            before = read(path)
            if before[0] != header:
                raise CommschedError(f"{path}: the log of another training; give another file")
            kept = [line for line in before if isinstance(line, LogHeader) or line.step < resume_at]
        files.write_bytes(path, b"".join(map(_encoded, kept)))
        self._path, self._file = path, files.open_to_append(path)

    def write(self, line: LogRow | HeldOutRow) -> None:
        """Append a line."""
        try:
            self._file.write(_encoded(line))
        except OSError as error:
            raise CommschedError(f"{self._path}: cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _encoded(line: Line) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def is_log(path: Path) -> bool:
    """Tell whether a file is the log of a training, by its name and its first line."""
    return path.suffix.lower() == ".jsonl" and path.is_file() and _begins_log(path)


def check_no_other(path: Path) -> None:
    """Refuse to replace a file, not an empty one, that is no log of a training."""
    if path.is_file() and path.stat().st_size and not _begins_log(path):
        raise CommschedError(f"{path}: is no log, and --log would replace it; give another file")


def _begins_log(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return b'"type":"training"' in file.readline(files.MAX_BYTES)
    except OSError:
        return False  # who reads the file says why it cannot be read


def read(path: Path) -> list[Line]:
    """Read a log: its header first. A last line that a crash has torn is left out."""
    lines = files.read_text(path, files.MAX_BYTES).split("\n")[:-1]
    found: list[Line] = []
    for number, text in enumerate(lines, 1):
        where = f"{path}, line {number}"
        line: Line = files.convert(files.parse(text, where), Line, where)  # type: ignore[arg-type]
        if isinstance(line, LogHeader) != (number == 1):
            raise CommschedError(f"{where}: a log has one header, in its first line")
        found.append(line)
    if not found:
        raise CommschedError(f"{path}: no log of a training: it is empty")
    return found
