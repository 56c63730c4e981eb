"""Timelines as Chrome trace-event JSON, which Perfetto and chrome://tracing open directly.

One process per rank, one thread per stream, one complete event ("ph": "X") per span; ts and dur in
microseconds since the run's start, in whole nanoseconds. `otherData` carries what traces lack.
Source: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from commsched import files
from commsched.errors import CommschedError
from commsched.timeline import check, parts
from commsched.timeline.header import Predicted, header_from_data
from commsched.timeline.model import Timeline

FORMAT: Literal["commsched-timeline/1"] = "commsched-timeline/1"

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Moment = Annotated[float, msgspec.Meta(ge=-check.LONGEST * 1e6, le=check.LONGEST * 1e6)]
Duration = Annotated[float, msgspec.Meta(ge=0, le=2 * check.LONGEST * 1e6)]
Size = Annotated[float, msgspec.Meta(ge=0, le=2**53)]


class Arguments(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """What a span carries in addition to its place."""

    step: Count
    waited_us: Duration
    nbytes: Size
    coded_us: Duration = 0.0


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


class TraceFile(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file."""

    displayTimeUnit: Literal["ms"]
    otherData: OtherData
    traceEvents: list[SpanEvent | NameEvent]


def write(path: str | Path, timeline: Timeline) -> None:
    """Write a timeline, under a temporary name first; times are rounded to whole nanoseconds."""
    wrong = check.problem(timeline)
    if wrong:
        raise CommschedError(f"{path}: not written: {wrong}")
    start = np.rint(timeline.start * 1e9)
    length = np.rint(timeline.end * 1e9) - start
    waited, coded = (
        np.minimum(np.rint(seconds * 1e9), length) for seconds in (timeline.waited, timeline.coded)
    )
    names = timeline.names
    columns = zip(
        [names[i] for i in timeline.name.tolist()],
        timeline.rank.tolist(),
        timeline.stream.tolist(),
        (start / 1e3).tolist(),
        (length / 1e3).tolist(),
        timeline.step.tolist(),
        (waited / 1e3).tolist(),
        timeline.nbytes.tolist(),
        (coded / 1e3).tolist(),
        strict=True,
    )
    spans = [
        # msgspec leaves a field out only where it is the default object itself
        SpanEvent(n, r, s, a, b, Arguments(k, w, m, c) if c else Arguments(k, w, m))
        for n, r, s, a, b, k, w, m, c in columns
    ]
    other = OtherData(
        format=FORMAT,
        kind="predicted" if isinstance(timeline.header, Predicted) else "measured",
        plan_hash=timeline.plan_hash,
        ranks=timeline.ranks,
        streams=list(timeline.streams),
        names=list(names),
        clock_uncertainty_us=float(np.rint(timeline.clock_uncertainty * 1e9)) / 1e3,
        meta=timeline.header.to_data(),
    )
    files.write_bytes(path, _encode(TraceFile("ms", other, [*_name_events(timeline), *spans])))


def _name_events(timeline: Timeline) -> list[SpanEvent | NameEvent]:
    """Name each rank and each stream that has a span."""
    events: list[SpanEvent | NameEvent] = []
    for rank in np.unique(timeline.rank).tolist():
        events.append(NameEvent("process_name", rank, 0, {"name": f"rank {rank}"}))
        events.append(NameEvent("process_sort_index", rank, 0, {"sort_index": rank}))
    lanes = np.unique(np.stack([timeline.rank, timeline.stream], axis=1), axis=0)
    for rank, stream in lanes.tolist():
        name = timeline.streams[stream]
        events.append(NameEvent("thread_name", rank, stream, {"name": name}))
        events.append(NameEvent("thread_sort_index", rank, stream, {"sort_index": stream}))
    return events


def _encode(file: TraceFile) -> bytes:
    """Encode with one event per line, so that people can read, search and diff the file."""
    encode = msgspec.json.Encoder().encode
    head = b'{"displayTimeUnit":"ms",\n"otherData":' + encode(file.otherData)
    return head + b',\n"traceEvents":[\n' + b",\n".join(map(encode, file.traceEvents)) + b"\n]}\n"


def read(path: str | Path) -> Timeline:
    """Read a timeline; if a run crashed before it was written, merge its ranks' files."""
    left = parts.find(path)
    if left and not Path(path).exists():
        return parts.read_parts(path, ended=False)
    timeline = from_text(files.read_text(path), str(path))
    if left and parts.newer(left, Path(path)):
        later = f"{path}: a later run to this file did not end; its parts lie beside it"
        warnings = (*timeline.warnings, later)
        header = msgspec.structs.replace(timeline.header, warnings=warnings)
        return replace(timeline, header=header)
    return timeline


def from_text(text: str, where: str) -> Timeline:
    """Read the text of a timeline's file; `where` names the file in errors."""
    timeline = _timeline(_as_we_write_it(text) or _strictly(text, where), where)
    wrong = check.problem(timeline)
    if wrong:
        raise CommschedError(f"{where}: {wrong}")
    return timeline


def _as_we_write_it(text: str) -> TraceFile | None:
    """Decode a file that `write` would write byte for byte; None for others.

    This is three times as fast as the strict reader. Equal bytes prove that no key occurs twice.
    """
    try:
        file = msgspec.json.decode(text, type=TraceFile)
        return file if _encode(file).decode() == text else None
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError):
        return None  # the strict reader says what is wrong


def _strictly(text: str, where: str) -> TraceFile:
    data = files.parse(text, where)
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
    return files.convert(data, TraceFile, where)


def _timeline(file: TraceFile, where: str) -> Timeline:
    other = file.otherData
    spans = [event for event in file.traceEvents if isinstance(event, SpanEvent)]
    index = {name: i for i, name in enumerate(other.names)}
    try:
        name = [index[s.name] for s in spans]
    except KeyError as error:
        raise CommschedError(
            f"{where}: operation {error} is not in the table otherData.names"
        ) from None
    start = np.rint(np.array([s.ts for s in spans], np.float64) * 1e3)  # ns
    length = np.rint(np.array([s.dur for s in spans], np.float64) * 1e3)  # ns
    return Timeline(
        header=header_from_data(other.kind, other.meta, f"{where}: "),
        plan_hash=other.plan_hash,
        ranks=other.ranks,
        streams=tuple(other.streams),
        names=tuple(other.names),
        rank=np.array([s.pid for s in spans], np.int32),
        stream=np.array([s.tid for s in spans], np.int32),
        name=np.array(name, np.int32),
        step=np.array([s.args.step for s in spans], np.int32),
        start=start / 1e9,
        end=(start + length) / 1e9,
        waited=np.array([s.args.waited_us for s in spans], np.float64) / 1e6,
        nbytes=np.array([s.args.nbytes for s in spans], np.float64),
        coded=np.array([s.args.coded_us for s in spans], np.float64) / 1e6,
        clock_uncertainty=other.clock_uncertainty_us / 1e6,
    )
