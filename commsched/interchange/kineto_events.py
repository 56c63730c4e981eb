"""The events of a torch.profiler trace: operations of the host and kernels of the device.

Source: the Chrome trace-event format, and Kineto's additions (github.com/pytorch/kineto).
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from commsched.errors import CommschedError
from commsched.interchange.content import Content
from commsched.interchange.passes import Gradient

RECORD = (
    "record with torch.profiler.profile(record_shapes=True, schedule=schedule(wait=1, warmup=1,"
    " active=5, repeat=1)) around whole training steps, call its step() after each, and"
    " export_chrome_trace"
)
LONGEST = 1e12  # us
HOST = ("cpu_op", "user_annotation", "python_function")
RUNTIME = ("cuda_runtime", "cuda_driver", "hip_runtime", "privateuse1_runtime", "runtime")
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
COLLECTIVE = re.compile(r"nccl|rccl|oneccl|all_?reduce", re.IGNORECASE)
DTYPES = {
    "float": "float32",
    "c10::half": "float16",
    "half": "float16",
    "c10::bfloat16": "bfloat16",
    "bfloat16": "bfloat16",
    "double": "float64",
}
WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}  # B


class KinetoEvent(msgspec.Struct, gc=False):
    """A span of the trace; `ts` and `dur` in us."""

    ph: str = ""
    name: str = ""
    cat: str | None = ""
    pid: Any = 0
    tid: Any = 0
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] = {}

    @property
    def end(self) -> float:
        """The end of the span in us."""
        return self.ts + self.dur

    @property
    def number(self) -> int:
        """Number of the autograd node that the operation makes or runs; -1: none."""
        found = self.args.get("Sequence number", -1)
        return found if isinstance(found, int) else -1

    @property
    def inputs(self) -> list[Gradient]:
        """Shapes and types of the inputs, without lists; shape None: not recorded."""
        shapes = self.args.get("Input Dims", self.args.get("Input dims"))
        types = self.args.get("Input type")
        if not isinstance(types, list):
            types = ["float"] if shapes is None else []
        shapes = shapes if isinstance(shapes, list) else [None] * len(types)
        pairs = zip(shapes, types, strict=False)
        return [Gradient(_shape(shape), str(kind).lower()) for shape, kind in pairs]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the inputs, with lists flattened; (): a number, or not recorded."""
        stored = self.args.get("Input Dims", self.args.get("Input dims"))
        rows = [row for row in stored if isinstance(row, list)] if isinstance(stored, list) else []
        each = (row if row and isinstance(row[0], list) else [row] for row in rows)
        return [_shape(shape) or () for some in each for shape in some]


class KinetoTrace(msgspec.Struct):
    """The whole file."""

    traceEvents: list[KinetoEvent]
    deviceProperties: list[dict[str, Any]] = []
    distributedInfo: dict[str, Any] = {}


class Kernel(NamedTuple):
    """Work that the host queued on a device; all times in us."""

    name: str
    thread: Any  # of the host, which queued the kernel
    given: float
    start: float
    end: float
    sent: Gradient | None  # tensor that a collective sends; None: the kernel computes

    @property
    def communicates(self) -> bool:
        """Tell whether the kernel is a collective."""
        return COLLECTIVE.search(self.name) is not None


@dataclass(frozen=True)
class KinetoProcess:
    """One process: spans by thread, outer ones first, and its device's work; us since its start."""

    where: str
    host: dict[Any, list[KinetoEvent]]
    kernels: tuple[Kernel, ...]
    device: str  # "": the host computes
    world: dict[str, Any]  # facts from torch.distributed

    def within(self, thread: Any, start: float, end: float) -> list[KinetoEvent]:
        """Return the spans of a thread that begin in [start, end)."""
        events = self.host.get(thread, [])
        first, last = (bisect_left(events, t, key=lambda e: e.ts) for t in (start, end))
        return events[first:last]

    def everywhere(self, start: float, end: float) -> list[KinetoEvent]:
        """Return the spans of all threads that begin in [start, end), in order."""
        found = [e for thread in self.host for e in self.within(thread, start, end)]
        return sorted(found, key=lambda e: (e.ts, -e.dur))


def outermost(events: Iterable[KinetoEvent]) -> list[KinetoEvent]:
    """Leave out spans nested in others of their thread; `events` are in order."""
    ends: dict[Any, float] = {}
    found = []
    for event in events:
        if event.ts >= ends.get(event.tid, float("-inf")):
            found.append(event)
            ends[event.tid] = event.end
    return found


def innermost(
    outer: Sequence[KinetoEvent], inner: Sequence[KinetoEvent]
) -> list[KinetoEvent | None]:
    """Return for each span of `inner` the shortest of `outer` around it; both in thread order."""
    open_: list[KinetoEvent] = []
    found: list[KinetoEvent | None] = []
    place = 0
    for event in inner:
        while place < len(outer) and outer[place].ts <= event.ts:
            open_.append(outer[place])
            place += 1
        while open_ and open_[-1].end < event.end:
            open_.pop()
        found.append(open_[-1] if open_ else None)
    return found


def read(content: Content) -> KinetoProcess:
    """Read a trace; raise an error if it does not come from one process's profiler."""
    trace = content.decode(KinetoTrace, "a trace of torch.profiler")
    events = [e for e in trace.traceEvents if e.ph == "X" and e.cat]
    kinds = {kind: [e for e in events if str(e.cat).lower() in kind] for kind in (HOST, RUNTIME)}
    processes = {str(e.pid) for e in kinds[HOST] if e.cat == "cpu_op"}
    if not processes:
        raise CommschedError(
            f"{content.where}: the trace has no operation of PyTorch (category 'cpu_op'); {RECORD}"
        )
    if len(processes) > 1:
        raise CommschedError(
            f"{content.where}: the trace is of {len(processes)} processes (their 'pid'); import the"
            " trace of one, as its own profiler exports it"
        )
    begin = min(e.ts for e in kinds[HOST])
    for event in events:
        event.ts -= begin
        if not (abs(event.ts) < LONGEST and 0.0 <= event.dur < LONGEST):
            raise CommschedError(
                f"{content.where}: event {event.name[:60]!a} lies {event.ts:.3g} us from the first"
                f" one and lasts {event.dur:.3g} us; a trace lasts seconds"
            )
        if not isinstance(event.tid, int | str):
            raise CommschedError(f"{content.where}: event {event.name[:60]!a} has no thread 'tid'")
    host: dict[Any, list[KinetoEvent]] = {}
    for event in sorted(kinds[HOST], key=lambda e: (e.ts, -e.dur)):
        host.setdefault(event.tid, []).append(event)
    device = [e for e in events if str(e.cat).lower() in DEVICE]
    kernels = _kernels(device, kinds[RUNTIME], kinds[HOST])
    names = [str(one.get("name", "")) for one in trace.deviceProperties]
    known = names[0] if names and names[0] else "GPU"
    computes = any(not kernel.communicates for kernel in kernels)
    return KinetoProcess(
        content.where, host, kernels, known if computes else "", trace.distributedInfo
    )


def _kernels(
    device: Sequence[KinetoEvent], runtime: Sequence[KinetoEvent], host: Sequence[KinetoEvent]
) -> tuple[Kernel, ...]:
    """Match each kernel with the host's call that queued it, by correlation or by operation."""
    calls = _by(runtime, "correlation")
    operations = _by((e for e in host if e.cat == "cpu_op"), "External id")
    found = []
    for kernel in device:
        call = calls.get(_key(kernel, "correlation")) or operations.get(_key(kernel, "External id"))
        if call is not None:
            sent = _sent(kernel) or _sent(operations.get(_key(kernel, "External id")))
            row = Kernel(kernel.name, call.tid, call.ts, kernel.ts, kernel.end, sent)
            found.append(row)
    return tuple(sorted(found, key=lambda kernel: kernel.given))


def _by(events: Iterable[KinetoEvent], key: str) -> dict[str, KinetoEvent]:
    return {_key(event, key): event for event in events if key in event.args}


def _key(event: KinetoEvent, key: str) -> str:
    return str(event.args.get(key, "missing"))


def _sent(event: KinetoEvent | None) -> Gradient | None:
    """Return the tensor that a collective sends, from the collective's arguments."""
    numel = event.args.get("In msg nelems") if event is not None else None
    if not isinstance(numel, int) or event is None or not 0 < numel < 2**53:
        return None
    dtype = str(event.args.get("dtype", "float")).lower()
    return Gradient((numel,), DTYPES.get(dtype, "float32"))


def _shape(stored: Any) -> tuple[int, ...] | None:
    if stored is None or not isinstance(stored, list):
        return None
    if not all(isinstance(size, int) and 0 <= size < 2**53 for size in stored):
        return None
    return tuple(stored)
