"""Timelines as Chrome trace-event JSON, which Perfetto and chrome://tracing open directly.

One process per rank, one thread per stream, one complete event ("ph": "X") per span; ts and dur in
microseconds since the run's start, in whole nanoseconds. `otherData` carries what traces lack.
Source: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import io
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import msgspec
import numpy as np

from commsched import files
from commsched.errors import CommschedError
from commsched.timeline import check, parts
from commsched.timeline.header import Predicted, header_from_data
from commsched.timeline.model import Columns, Timeline

FORMAT: Literal["commsched-timeline/1"] = "commsched-timeline/1"
HEAD, EVENTS, END = b'{"displayTimeUnit":"ms",\n', b'"traceEvents":[\n', b"\n]}\n"
AT_ONCE = 2**15  # events that are Python objects at the same time

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Moment = Annotated[float, msgspec.Meta(ge=-check.LONGEST * 1e6, le=check.LONGEST * 1e6)]
Duration = Annotated[float, msgspec.Meta(ge=0, le=2 * check.LONGEST * 1e6)]
Size = Annotated[float, msgspec.Meta(ge=0, le=2**53)]
UNCODED = 0.0


class Arguments(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """The arguments of a span, in addition to rank, stream, step and times."""

    step: Count
    waited_us: Duration
    nbytes: Size
    coded_us: Duration = UNCODED
    decided: float | msgspec.UnsetType | None = msgspec.UNSET  # None: no finite number


class SpanEvent(msgspec.Struct, tag="X", tag_field="ph", forbid_unknown_fields=True, gc=False):
    """A complete event: pid is the rank, tid the index of the stream."""

    name: str
    pid: Count
    tid: Count
    ts: Moment
    dur: Duration
    args: Arguments


class NameEvent(msgspec.Struct, tag="M", tag_field="ph", forbid_unknown_fields=True):
    """A metadata event: names or sorts a process or thread for the viewer."""

    name: str
    pid: Count
    tid: Count
    args: dict[str, str | int]


class OtherData(msgspec.Struct, forbid_unknown_fields=True):
    """Data other than spans: trace viewers show it, commsched reads it."""

    format: Literal["commsched-timeline/1"]
    kind: Literal["predicted", "measured"]
    plan_hash: str
    ranks: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    streams: list[str]
    names: list[str]
    clock_uncertainty_us: Duration
    meta: dict[str, Any]  # see timeline/header.py


Event = SpanEvent | NameEvent


class TraceFile(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file."""

    displayTimeUnit: Literal["ms"]
    otherData: OtherData
    traceEvents: list[Event]


_ENCODER, _DECODER = msgspec.json.Encoder(), msgspec.json.Decoder(list[Event])


def write(path: str | Path, timeline: Timeline) -> None:
    """Write a timeline, first under a temporary name; times are rounded to whole nanoseconds."""
    lanes = np.unique(np.stack([timeline.rank, timeline.stream], axis=1), axis=0)
    with files.writing(path) as file:
        writer = Writer(file, str(path), timeline, lanes.tolist())
        writer.add(timeline)
        writer.end()


class Writer:
    """A writer of a timeline piece by piece, so that only one piece needs memory.

    A piece has all spans of its steps; an empty line precedes each piece but the first.
    """

    def __init__(
        self, file: IO[bytes], where: str, known: Timeline, lanes: Iterable[tuple[int, int]]
    ) -> None:
        """Begin with all of `known` but its spans; `lanes`: each rank with each of its streams.

        `where` names the file in errors.
        """
        self._file, self._where, self._gap, self._begun = file, where, b"", False
        other = OtherData(
            format=FORMAT,
            kind="predicted" if isinstance(known.header, Predicted) else "measured",
            plan_hash=known.plan_hash,
            ranks=known.ranks,
            streams=list(known.streams),
            names=list(known.names),
            clock_uncertainty_us=float(np.rint(known.clock_uncertainty * 1e9)) / 1e3,
            meta=known.header.to_data(),
        )
        file.write(HEAD + _other_line(other) + EVENTS)
        self._put(_name_events(lanes, known.streams))

    def add(self, piece: Timeline) -> None:
        """Write the spans of some steps."""
        wrong = check.problem(piece)
        if wrong:
            raise CommschedError(f"{self._where}: not written: {wrong}")
        if self._begun:
            self._gap = b",\n\n"
        for first in range(0, len(piece), AT_ONCE):
            self._put(_span_events(piece.select(slice(first, first + AT_ONCE))))
            self._begun = True

    def end(self) -> None:
        """Write the text after the last piece."""
        self._file.write(END)

    def _put(self, events: list[Event]) -> None:
        if events:
            self._file.write(self._gap + _lines(events))
            self._gap = b",\n"


def _span_events(t: Timeline) -> list[Event]:
    start = np.rint(t.start * 1e9)
    length = np.rint(t.end * 1e9) - start
    waited, coded = (np.minimum(np.rint(each * 1e9), length) for each in (t.waited, t.coded))
    columns = zip(
        [t.names[i] for i in t.name.tolist()],
        t.rank.tolist(),
        t.stream.tolist(),
        (start / 1e3).tolist(),
        (length / 1e3).tolist(),
        t.step.tolist(),
        (waited / 1e3).tolist(),
        t.nbytes.tolist(),
        # msgspec omits a field only if its value is the default object itself
        [c or UNCODED for c in (coded / 1e3).tolist()],
        [_told(d) for d in t.decided.tolist()],
        strict=True,
    )
    return [
        SpanEvent(n, r, s, a, b, Arguments(k, w, m, c, d))
        for n, r, s, a, b, k, w, m, c, d in columns
    ]


def _told(decided: float) -> float | msgspec.UnsetType | None:
    return msgspec.UNSET if math.isnan(decided) else decided if math.isfinite(decided) else None


def _decided(told: float | msgspec.UnsetType | None) -> float:
    return math.nan if told is msgspec.UNSET else math.inf if told is None else told


def _name_events(lanes: Iterable[tuple[int, int]], streams: Sequence[str]) -> list[Event]:
    """Name each rank and each of its streams."""
    ranks, threads = {}, []
    for rank, stream in sorted(lanes):
        ranks[rank] = [
            NameEvent("process_name", rank, 0, {"name": f"rank {rank}"}),
            NameEvent("process_sort_index", rank, 0, {"sort_index": rank}),
        ]
        threads.append(NameEvent("thread_name", rank, stream, {"name": streams[stream]}))
        threads.append(NameEvent("thread_sort_index", rank, stream, {"sort_index": stream}))
    return [*chain.from_iterable(ranks.values()), *threads]


def _other_line(other: OtherData) -> bytes:
    return b'"otherData":' + _ENCODER.encode(other) + b",\n"


def _lines(events: list[Event]) -> bytes:
    """Encode one event per line, so that the file can be read, searched and compared."""
    return _ENCODER.encode_lines(events)[:-1].replace(b"}\n", b"},\n")  # strings have no newline


def read(path: str | Path, window: int = parts.WINDOW, decided: int | None = None) -> Timeline:
    """Read a timeline; if a run crashed before writing the file, merge the parts of its ranks.

    If a file has more than `window` bytes, only the newest steps are read, with a warning.
    `decided`: read only the decisions of the first `decided` steps, from files of any size.
    """
    base = parts.base(path)
    if base is not None:
        return parts.read_parts(base, ended=False, window=window, decided=decided)
    left = parts.find(path)
    if left and not Path(path).exists():
        return parts.read_parts(path, ended=False, window=window, decided=decided)
    timeline = _streamed(path, window, decided)
    if timeline is None:  # an empty timeline is false
        timeline = from_text(files.read_text(path), str(path))
    if left and parts.newer(left, Path(path)):
        beside = parts.part_path(path, next(iter(left))).name
        later = f"{path}: a later run to this file did not end; its parts lie beside it as {beside}"
        return timeline.warned(f"{later}, which `commsched show` reads")
    return timeline


def from_text(text: str, where: str) -> Timeline:
    """Read the text of a timeline's file; `where` names the file in errors."""
    file = io.BytesIO(text.encode())
    found = _as_we_write_it(file, where, parts.WINDOW)
    return _checked(_strictly(text, where) if found is None else found, where)


def _streamed(path: str | Path, window: int, decided: int | None) -> Timeline | None:
    if not is_ours(path):
        return None
    with files.unpacked(path) as file:
        found = _as_we_write_it(file, str(path), window, decided)
    return None if found is None else _checked(found, str(path))


def _checked(timeline: Timeline, where: str) -> Timeline:
    wrong = check.problem(timeline)
    if wrong:
        raise CommschedError(f"{where}: {wrong}")
    return timeline


def is_ours(path: str | Path) -> bool:
    """Tell whether a regular file begins like a file of `write`."""
    return files.head(path, len(HEAD)) == HEAD


def _as_we_write_it(
    file: IO[bytes], where: str, window: int, decided: int | None = None
) -> Timeline | None:
    """Read a file in chunks if `write` would write it byte for byte; None for other files.

    Equal bytes prove that no key occurs twice.
    """
    try:
        if file.read(len(HEAD)) != HEAD:
            return None
        line = file.readline(files.MAX_BYTES)
        other = msgspec.json.decode(line[line.index(b":") + 1 : -2], type=OtherData)
        if _other_line(other) != line or file.readline(len(EVENTS)) != EVENTS:
            return None
        skipped = decided is None and _skip(file, window)
        columns, index = Columns(), {name: i for i, name in enumerate(other.names)}
        for events in _chunks(file):
            columns.add_columns(*_columns(events, index, decided))
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError, KeyError):
        return None  # the strict reader names the problem
    found = _timeline(other, columns, where)
    if not skipped:
        return found
    newest = f"{where}: larger than {window} bytes, so that only its newest steps were read"
    return found.warned(f"{newest}: those from step {found.step.min()} on")


def _skip(file: IO[bytes], window: int) -> bool:
    """Skip to the first piece that begins in the last `window` bytes, if the file is larger."""
    here, size = file.tell(), file.seek(0, os.SEEK_END)
    if size - here > window:
        file.seek(size - window)
        file.readline()  # the rest of a line does not end a piece
        if any(line == b"\n" for line in file):
            return True
    file.seek(here)
    if size > files.MAX_BYTES:
        raise ValueError("one piece beyond what can be read")
    return False


def _chunks(file: IO[bytes]) -> Iterator[list[Event]]:
    """Yield the events of each chunk; raise ValueError if `write` would write them differently."""
    rest = b""
    while chunk := file.read(parts.CHUNK):
        text, comma, rest = (rest + chunk).rpartition(b",\n")
        if comma:
            yield _events(text)
    if not rest.endswith(END):
        raise ValueError("no end")
    yield _events(rest.removesuffix(END))


def _events(text: bytes) -> list[Event]:
    text = text.removeprefix(b"\n").replace(b",\n\n", b",\n")
    events = _DECODER.decode(b"[" + text + b"]")
    if _lines(events) != text:
        raise ValueError("not as we write it")
    return events


def _strictly(text: str, where: str) -> Timeline:
    data = files.parse(text, where)
    files.check_kind(data, "timeline", where)
    other = data.get("otherData") if isinstance(data, dict) else None
    if not isinstance(other, dict) or "format" not in other:
        raise CommschedError(
            f"{where}: not a timeline of commsched: key 'otherData' with 'format' {FORMAT!r} "
            "is missing; `commsched simulate` and `commsched run` write timelines"
        )
    try:
        msgspec.json.encode(data)
    except (ValueError, OverflowError) as error:  # half a surrogate pair, a number beyond 64 bits
        raise CommschedError(f"{where}: not usable as JSON: {error}") from None
    file = files.convert(data, TraceFile, where)
    columns, index = Columns(), {name: i for i, name in enumerate(file.otherData.names)}
    try:
        columns.add_columns(*_columns(file.traceEvents, index))
    except KeyError as error:
        raise CommschedError(
            f"{where}: operation {error} is not in the table otherData.names"
        ) from None
    return _timeline(file.otherData, columns, where)


def _columns(
    events: list[Event], index: dict[str, int], decided: int | None = None
) -> tuple[Any, ...]:
    """Return the columns of spans, times in s, in the order of a span's fields; see `read`."""
    spans = [event for event in events if isinstance(event, SpanEvent)]
    if decided is not None:
        told = (span for span in spans if span.args.decided is not msgspec.UNSET)
        spans = [span for span in told if span.args.step < decided]
    start = np.rint(np.array([s.ts for s in spans], np.float64) * 1e3)  # ns
    length = np.rint(np.array([s.dur for s in spans], np.float64) * 1e3)  # ns
    return (
        [s.pid for s in spans],
        [s.tid for s in spans],
        [index[s.name] for s in spans],
        [s.args.step for s in spans],
        start / 1e9,
        (start + length) / 1e9,
        np.array([s.args.waited_us for s in spans], np.float64) / 1e6,
        [s.args.nbytes for s in spans],
        np.array([s.args.coded_us for s in spans], np.float64) / 1e6,
        [_decided(s.args.decided) for s in spans],
    )


def _timeline(other: OtherData, columns: Columns, where: str) -> Timeline:
    return Timeline(
        header=header_from_data(other.kind, other.meta, f"{where}: "),
        plan_hash=other.plan_hash,
        ranks=other.ranks,
        streams=tuple(other.streams),
        names=tuple(other.names),
        clock_uncertainty=other.clock_uncertainty_us / 1e6,
        **columns.taken(),
    )
