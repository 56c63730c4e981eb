"""Each rank appends its spans to a file of its own, so that a crash loses at most one line.

Beside `measured.json`, rank 3 writes `measured.json.rank3.jsonl`: a header line (an object), then
one array per span, in seconds on the rank's own clock. Merging puts them on rank 0's clock.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec

from commsched import files
from commsched.errors import CommschedError
from commsched.timeline import check
from commsched.timeline.header import Count, Measured
from commsched.timeline.model import Span, Timeline

Finite = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]

COLUMNS = ("stream", "name", "step", "start_s", "end_s", "waited_s", "nbytes", "coded_s")


class PartHeader(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The first line of a part.

    A moment x on the rank's clock is x + clock_offset - t0 seconds after the run's start.
    """

    format: Literal["commsched-part/1"] = "commsched-part/1"
    columns: tuple[str, ...] = COLUMNS
    plan_hash: str
    ranks: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    rank: Count
    clock_offset_us: Finite = 0.0  # add to the rank's clock to get rank 0's
    clock_uncertainty_us: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0
    t0: Finite = 0.0  # s, the run's start on rank 0's clock
    streams: tuple[str, ...] = ()  # in drawing order
    names: tuple[str, ...] = ()  # in program order
    meta: Measured = Measured()


class PartRow(NamedTuple):
    """One line after the header."""

    stream: str
    name: str
    step: Count
    start: Finite  # s on the rank's clock
    end: Finite  # s on the rank's clock
    waited: Annotated[float, msgspec.Meta(ge=0, le=1e12)]  # s
    nbytes: Annotated[float, msgspec.Meta(ge=0, le=2**53)]  # whole
    coded: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0  # s; older parts lack it


class PartWriter:
    """Appends the spans of one rank; each append is handed to the operating system at once."""

    def __init__(self, path: str | Path, header: PartHeader) -> None:
        self.path = part_path(path, header.rank)
        self._encode = msgspec.json.Encoder().encode
        self._file = files.open_to_append(self.path, fresh=True)
        self._put(self._encode(header) + b"\n")

    def append(self, spans: Iterable[Span]) -> None:
        """Append spans, in seconds on this rank's own clock, as whole lines in one write."""
        self._put(b"".join([self._encode(span[1:]) + b"\n" for span in spans]))

    def _put(self, content: bytes) -> None:
        try:
            while content:  # an unbuffered write may take only a part
                content = content[self._file.write(content) :]
        except OSError as error:
            raise CommschedError(f"{self.path}: cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Close the file; what was appended is already in it."""
        self._file.close()


def part_path(path: str | Path, rank: int) -> Path:
    """Return where `rank` appends its spans for the timeline `path`."""
    path = Path(path)
    return path.with_name(f"{path.name}.rank{rank}.jsonl")


def base(path: str | Path) -> Path | None:
    """Return of which timeline a file is a part; None: it is no part."""
    path = Path(path)
    found = re.fullmatch(r"(.+)\.rank(0|[1-9][0-9]{0,9})\.jsonl", path.name)
    return path.with_name(found[1]) if found else None


def find(path: str | Path) -> dict[int, Path]:
    """Return the parts of the timeline `path` that exist, by rank."""
    path = Path(path)
    pattern = re.compile(re.escape(path.name) + r"\.rank(0|[1-9][0-9]{0,9})\.jsonl")
    try:
        names = os.listdir(path.parent)
    except OSError:
        return {}
    found = {int(m[1]): path.with_name(m[0]) for m in map(pattern.fullmatch, names) if m}
    return dict(sorted(found.items()))


def newer(found: Mapping[int, Path], path: Path) -> bool:
    """Tell whether any of the parts was written after the file `path`."""
    try:
        return any(p.stat().st_mtime_ns > path.stat().st_mtime_ns for p in found.values())
    except OSError:  # removed meanwhile, by the run that ended
        return False


def remove_parts(path: str | Path) -> None:
    """Delete the parts of `path`: before a run, and after its merged timeline is written."""
    for part in find(path).values():
        part.unlink(missing_ok=True)


def read_parts(path: str | Path, ended: bool = True) -> Timeline:
    """Merge the parts of `path` onto rank 0's clock; `ended` is False if the run crashed.

    Torn last lines and missing ranks become warnings of the timeline.
    """
    warnings = [] if ended else [f"{path}: the run did not end; merged from what its ranks left"]
    found: list[tuple[PartHeader, list[PartRow]]] = []
    for rank, part in find(path).items():
        header, rows, torn = _read_part(part, rank)
        if torn:
            warnings.append(f"rank {rank}: the last line of its part is torn and was left out")
        if header is not None:
            found.append((header, rows))
    if not found:
        raise CommschedError(f"{path}: no parts of ranks ({part_path(path, 0).name}, ...) found")
    headers = [header for header, _ in found]
    _agree(headers, str(path))
    ranks = headers[0].ranks
    missing = sorted(set(range(min(ranks, 2**20))) - {header.rank for header in headers})
    if missing:
        warnings.append(f"{_ranks(missing)} of {ranks} left no spans")
    timeline = _merge(found, tuple(warnings))
    wrong = check.problem(timeline)
    if wrong:
        raise CommschedError(f"{path}: parts cannot be merged: {wrong}")
    return timeline


def _read_part(part: Path, rank: int) -> tuple[PartHeader | None, list[PartRow], bool]:
    """Return the header (None where not even that was written), the spans, and if it is torn."""
    *lines, rest = files.read_bytes(part).split(b"\n")
    if not lines:
        return None, [], bool(rest)
    where = f"{part}, line 1"
    header = files.convert(files.parse(lines[0], where), PartHeader, where)
    if header.rank != rank:
        raise CommschedError(f"{where}: rank is {header.rank}, but the file's name says {rank}")
    decode = msgspec.json.Decoder(PartRow).decode
    rows: list[PartRow] = []
    try:
        rows.extend(map(decode, lines[1:]))
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        line = len(rows) + 2
        raise CommschedError(f"{part}, line {line}: not a span: {error}") from None
    return header, rows, bool(rest)


def _agree(headers: list[PartHeader], where: str) -> None:
    """Refuse parts that different runs left."""
    first = headers[0]
    for other in headers[1:]:
        for what in ("plan_hash", "ranks", "t0"):
            a, b = getattr(first, what), getattr(other, what)
            if a != b:
                raise CommschedError(
                    f"{where}: the parts of rank {first.rank} and {other.rank} are of different "
                    f"runs: {what} is {a!r} and {b!r}; remove those of the older run"
                )


def _merge(parts: list[tuple[PartHeader, list[PartRow]]], warnings: tuple[str, ...]) -> Timeline:
    first, spans = parts[0][0], []
    for header, rows in parts:
        # one shift for both ends, so that spans which touch on the rank's clock still touch
        shift = header.clock_offset_us / 1e6 - header.t0
        for row in rows:
            start, end = row.start + shift, row.end + shift
            spans.append(Span(header.rank, *row[:3], start, end, *row[5:]))
    return Timeline.of(
        spans,
        header=msgspec.structs.replace(first.meta, warnings=warnings),
        plan_hash=first.plan_hash,
        ranks=first.ranks,
        streams=[word for header, _ in parts for word in header.streams],
        names=[word for header, _ in parts for word in header.names],
        clock_uncertainty=max(header.clock_uncertainty_us for header, _ in parts) / 1e6,
    )


def _ranks(ranks: list[int]) -> str:
    """Say which ranks, in few words."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}{' and more' if len(ranks) > 8 else ''}"
