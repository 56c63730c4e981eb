"""Part files: each rank appends its spans to its own file, so that a crash loses at most a line.

Beside `measured.json`, rank 3 writes `measured.json.rank3.jsonl`: a header line (an object), then
one array per span, in seconds on the rank's own clock. Merging puts them on rank 0's clock.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf, isnan, nan
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec

from commsched import files
from commsched.errors import CommschedError
from commsched.timeline import check
from commsched.timeline.header import Count, RunHeader
from commsched.timeline.measure import waiting_filled
from commsched.timeline.model import Columns, Span, Timeline

Finite = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]

WINDOW = 5 * 2**26  # most B read of a timeline: 2.4 million spans, which take 470 MB of memory
SPAN = 140  # B of a span in one file; parts are limited to as many spans
SAMPLE = 2**16  # B at the end of a part, from which the size of its lines is estimated
CHUNK = 2**22  # B that are decoded at one time
SPANS = "jsonl"  # suffix of the file with a rank's spans
COLUMNS = (
    *("stream", "name", "step", "start_s", "end_s", "waited_s", "nbytes", "coded_s"),
    "decided",  # only if there was a decision
)


class PartHeader(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The first line of a part.

    Time x on the rank's clock is x + clock_offset - t0 seconds after the run's start.
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
    meta: RunHeader = RunHeader()


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
    decided: float | None = nan  # nan: no decision; None: not finite


_DECODE = msgspec.json.Decoder(PartRow).decode
_ENCODER = msgspec.json.Encoder()


class PartWriter:
    """A writer of one rank's spans; each append goes to the operating system at once.

    It records where the spans of each `block` of steps end in the file, for a merge by steps.
    """

    def __init__(self, path: str | Path, header: PartHeader, block: int = 1) -> None:
        self.timeline, self.path = Path(path), part_path(path, header.rank)
        self.block = block
        self.streams: dict[str, None] = {}  # of all spans so far
        self.names: dict[str, None] = {}
        self.ends: dict[int, int] = {}  # number of a block of steps -> B before its end
        self._file = files.open_to_append(self.path, fresh=True)
        self._at = 0
        self._put(_ENCODER.encode(header) + b"\n")
        self.begin = self._at  # B of the header

    def append(self, spans: Iterable[Span]) -> None:
        """Append spans, in seconds on this rank's own clock, as whole lines in one write."""
        spans = list(spans)
        rows = [span[1:-1] if span.decided is None else span[1:] for span in spans]
        self._put(_ENCODER.encode_lines(rows))
        self.streams.update(dict.fromkeys(span.stream for span in spans))
        self.names.update(dict.fromkeys(span.name for span in spans))
        self.ends.update(dict.fromkeys({span.step // self.block for span in spans}, self._at))

    def _put(self, content: bytes) -> None:
        try:
            while content:  # an unbuffered write may take only a part
                written = self._file.write(content)
                self._at, content = self._at + written, content[written:]
        except OSError as error:
            raise CommschedError(f"{self.path}: cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Close the file; what was appended is already in it."""
        self._file.close()


def part_path(path: str | Path, rank: int, kind: str = SPANS) -> Path:
    """Return the file of `rank` for the timeline `path`: its spans, or another kind."""
    path = Path(path)
    return path.with_name(f"{path.name}.rank{rank}.{kind}")


def base(path: str | Path) -> Path | None:
    """Return the timeline to which a part file belongs; None for other files."""
    path = Path(path)
    found = re.fullmatch(r"(.+)\.rank(0|[1-9][0-9]{0,9})\.jsonl", path.name)
    return path.with_name(found[1]) if found else None


def find(path: str | Path, kind: str = SPANS) -> dict[int, Path]:
    """Return the existing parts of the timeline `path`, by rank; or files of another kind."""
    path = Path(path)
    pattern = re.compile(re.escape(path.name) + rf"\.rank(0|[1-9][0-9]{{0,9}})\.{kind}")
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
    except OSError:  # removed meanwhile, by the end of the run
        return False


def remove_parts(path: str | Path) -> None:
    """Delete the parts of `path`: before a run, and after its merged timeline is written."""
    for part in find(path).values():
        part.unlink(missing_ok=True)


def read_parts(
    path: str | Path, ended: bool = True, window: int = WINDOW, decided: int | None = None
) -> Timeline:
    """Merge the parts of `path` onto rank 0's clock; `ended` is False if the run crashed.

    Torn last lines and missing ranks become warnings of the timeline. If the parts would be larger
    than `window` bytes in one file, only the newest steps are read, with a warning. `decided`: read
    only the decisions of the first `decided` steps.
    """
    found = [_Part(part, rank, decided) for rank, part in find(path).items()]
    headers = [part.header for part in found if part.header is not None]
    if not headers:
        raise CommschedError(f"{path}: no parts of ranks ({part_path(path, 0).name}, ...) found")
    _agree(headers, str(path))
    timeline = _merge([part for part in found if part.header is not None], headers, window)
    if not ended:  # waiting is not filled in yet; teams are unknown
        timeline = waiting_filled(timeline)
    warnings = [] if ended else [f"{path}: the run did not end; merged from what its ranks left"]
    for part in found:
        if part.torn:
            line = f"rank {part.rank}: the last line of its part is torn and was left out"
            warnings.append(line)
    ranks = headers[0].ranks
    missing = sorted(set(range(min(ranks, 2**20))) - {header.rank for header in headers})
    if missing:
        warnings.append(f"{_ranks(missing)} of {ranks} left no spans")
    since = max(part.since for part in found)
    if since:
        what = f"{path}: the parts have more than {window // SPAN} spans, so that only their newest"
        warnings.append(f"{what} steps were read: those from step {since} on")
    header = msgspec.structs.replace(timeline.header, warnings=tuple(warnings))
    timeline = replace(timeline, header=header)
    wrong = check.problem(timeline)
    if wrong:
        raise CommschedError(f"{path}: parts cannot be merged: {wrong}")
    return timeline


class _Part:
    """The part of a rank."""

    def __init__(self, path: Path, rank: int, decided: int | None) -> None:
        """Read the header, which stays None if it was not written."""
        self.path, self.rank, self.since = path, rank, 0  # since: first step to read
        self.number, self.after = 2, ""  # number of the line at `begin`, and from where lines count
        self._decided = decided
        self.header: PartHeader | None = None
        with files.opened(path) as file:
            line = file.readline(files.MAX_BYTES)
        self.begin, self.torn = len(line), bool(line) and not line.endswith(b"\n")
        if not line.endswith(b"\n"):
            return
        where = f"{path}, line 1"
        self.header = files.convert(files.parse(line[:-1], where), PartHeader, where)
        if self.header.rank != rank:
            raise CommschedError(
                f"{where}: rank is {self.header.rank}, but the file's name says {rank}"
            )

    def begin_late(self, window: int) -> int:
        """Skip all but the newest spans, as many as take `window` bytes in one file.

        Return the first step that has all of its spans.
        """
        if self._decided is not None:
            return 0
        with files.opened(self.path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self.begin, size - SAMPLE))
            sample = file.read(SAMPLE)
            kept = window * len(sample) // (SPAN * max(1, sample.count(b"\n")))
            if size - self.begin <= kept:
                return 0
            file.seek(size - kept)
            file.readline()  # the rest of a line
            begin, line = file.tell(), file.readline()
            if not line.endswith(b"\n"):
                return 0
            self.begin, self.number, self.after = begin, 1, f" after byte {begin}"
            # Streams are rarely more than one step apart.
            return self._decoded([line[:-1]], self.number)[0].step + 2

    def rows(self, since: int) -> Iterator[list[PartRow]]:
        """Yield the rows from a step on, in chunks."""
        self.since = since
        number = self.number
        with files.opened(self.path) as file:
            file.seek(self.begin)
            rest = b""
            while chunk := file.read(CHUNK):
                *lines, rest = (rest + chunk).split(b"\n")
                rows = self._decoded(lines, number)
                number += len(lines)
                if self._decided is not None:
                    rows = self._told(rows, self._decided)
                yield [row for row in rows if row.step >= since] if since else rows
        self.torn = bool(rest)

    def _decoded(self, lines: Iterable[bytes], number: int) -> list[PartRow]:
        """Decode lines; `number` is the number of the first line, for errors."""
        rows: list[PartRow] = []
        try:
            rows.extend(rows_of(lines))
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            line = f"line {number + len(rows)}{self.after}"
            raise CommschedError(f"{self.path}, {line}: not a span: {error}") from None
        return rows

    @staticmethod
    def _told(rows: list[PartRow], decided: int) -> list[PartRow]:
        agreed = (row for row in rows if row.decided is None or not isnan(row.decided))
        return [row for row in agreed if row.step < decided]


def rows_of(lines: Iterable[bytes]) -> Iterator[PartRow]:
    """Decode lines of a part after its header."""
    return map(_DECODE, lines)


def on_clock(rows: Iterable[PartRow], rank: int, shift: float) -> Iterator[Span]:
    """Return spans on rank 0's clock; one shift for both ends keeps touching spans in touch."""
    for row in rows:
        decided = inf if row.decided is None else None if isnan(row.decided) else row.decided
        yield Span(rank, *row[:3], row.start + shift, row.end + shift, *row[5:8], decided)


def _agree(headers: list[PartHeader], where: str) -> None:
    """Reject parts of different runs."""
    first = headers[0]
    for other in headers[1:]:
        for what in ("plan_hash", "ranks", "t0"):
            a, b = getattr(first, what), getattr(other, what)
            if a != b:
                raise CommschedError(
                    f"{where}: the parts of rank {first.rank} and {other.rank} are of different "
                    f"runs: {what} is {a!r} and {b!r}; remove those of the older run"
                )


def _merge(parts: list[_Part], headers: list[PartHeader], window: int) -> Timeline:
    columns = Columns(
        [word for header in headers for word in header.streams],
        [word for header in headers for word in header.names],
    )
    since = max(part.begin_late(window // len(parts)) for part in parts)
    for part, header in zip(parts, headers, strict=True):
        for rows in part.rows(since):
            columns.add(on_clock(rows, part.rank, header.clock_offset_us / 1e6 - header.t0))
    first = headers[0]
    return columns.timeline(
        header=first.meta,
        plan_hash=first.plan_hash,
        ranks=first.ranks,
        clock_uncertainty=max(header.clock_uncertainty_us for header in headers) / 1e6,
    )


def _ranks(ranks: list[int]) -> str:
    """Name ranks in few words."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}{' and more' if len(ranks) > 8 else ''}"
