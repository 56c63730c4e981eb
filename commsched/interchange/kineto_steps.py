"""The training steps of a torch.profiler trace, with each operation's time on host or device."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np

from commsched.errors import CommschedError
from commsched.interchange import aten
from commsched.interchange.kineto_events import (
    DTYPES,
    RECORD,
    WIDTHS,
    KinetoEvent,
    KinetoProcess,
    innermost,
    outermost,
)
from commsched.interchange.passes import Backward, Forward, Gradient, Work
from commsched.timeline.intervals import Intervals, intersection, intervals, union

NODE = "autograd::engine::evaluate_function: "
GRADIENT = "torch::autograd::AccumulateGrad"
STEP, LOADER, OPTIMIZER, MODULE = (
    "ProfilerStep#",
    "enumerate(DataLoader)",
    "Optimizer.",
    "nn.Module: ",
)


class Collective(NamedTuple):
    """A collective of one step; us since the trace's start."""

    name: str
    start: float
    end: float
    nbytes: float  # 0: not recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """A recorded training step; seconds."""

    begin: float  # us: start of the forward pass, on the device if there is one
    end: float  # us: end of the step's window on the host
    forward: tuple[Forward, ...]
    backward: tuple[Backward, ...]
    data: float
    optimizer: float
    collectives: tuple[Collective, ...]
    communication: float
    hidden: float  # seconds of communication that overlap compute


def steps(recording: KinetoProcess) -> list[RecordedStep]:
    """Return the steps that have a forward and a backward pass."""
    marks = [
        e
        for events in recording.host.values()
        for e in outermost(e for e in events if e.name.startswith(STEP))
    ]
    windows = sorted((e.ts, e.end) for e in marks)
    if not windows:
        last = max(e.end for events in recording.host.values() for e in events)
        windows = [(0.0, last + 1.0)]
    found = [_step(recording, *window) for window in windows]
    return [step for step in found if step is not None]


class _Clock:
    """The times at which queued work was done: at once on the host, later on a device."""

    def __init__(self, recording: KinetoProcess) -> None:
        self._given: dict[Any, list[float]] = {}
        ends: dict[Any, list[float]] = {}
        self.kernels = [k for k in recording.kernels if not k.communicates]
        for kernel in self.kernels:
            self._given.setdefault(kernel.thread, []).append(kernel.given)
            ends.setdefault(kernel.thread, []).append(kernel.end)
        self._ends = {thread: list(accumulate(some, max)) for thread, some in ends.items()}
        self.on_device = bool(recording.device)

    def when(self, thread: Any, moment: float) -> float:
        """Return when all work was done that a thread had queued by a moment."""
        if not self.on_device:
            return moment
        place = bisect_right(self._given.get(thread, []), moment)
        return self._ends[thread][place - 1] if place else float("-inf")

    def begin(self, start: float, end: float) -> float:
        """Return when the work queued in [start, end) begins, which is after all earlier work."""
        if not self.on_device:
            return start
        before = max((k.end for k in self.kernels if k.given < start), default=float("-inf"))
        found = (k.start for k in self.kernels if start <= k.given < end)
        return max(before, min(found, default=start))


def _step(recording: KinetoProcess, start: float, end: float) -> RecordedStep | None:
    everything = recording.everywhere(start, end)
    nodes = outermost(e for e in everything if e.name.startswith(NODE))
    if not nodes:
        return None
    clock = _Clock(recording)
    turned = nodes[0].ts
    thread = _forward_thread(everything, turned)
    own = recording.within(thread, start, end)
    marks = [e for e in own if e.cat == "user_annotation"]
    aside = [e for e in marks if e.name.startswith((LOADER, OPTIMIZER)) and not _holds(e, turned)]
    all_ops = [e for e in own if e.cat == "cpu_op"]
    ops = outermost(e for e in all_ops if e.ts < turned)
    ops = [e for e, out in zip(ops, innermost(aside, ops), strict=True) if out is None]
    if not ops:
        return None
    if not clock.on_device and any(node.tid != thread for node in nodes):
        raise CommschedError(
            f"{recording.where}: the backward pass ran on a thread of its own, as for an"
            " accelerator, but no kernels are recorded; give torch.profiler"
            " activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        )
    _check_one_pass(recording, all_ops, nodes, end)
    begin = clock.begin(ops[0].ts, end)
    forward, at = _forward(clock, own, ops, begin)
    at = max(at, clock.when(thread, turned))  # the loss belongs to the forward pass
    backward = _backward(recording, clock, nodes, everything, at)
    updates = outermost(e for e in marks if e.name.startswith(f"{OPTIMIZER}step"))
    over = max(node.end for node in nodes)
    since = [over if _holds(e, turned) else e.ts for e in updates]
    collectives = _collectives(recording, start, end)
    computing = _computing(recording, clock, everything, start, end)
    spans = _spans([(c.start, c.end) for c in collectives])
    return RecordedStep(
        begin=begin,
        end=end,
        forward=tuple(forward),
        backward=tuple(backward),
        data=_waiting(clock, everything, begin),
        optimizer=sum(_update(clock, *pair) for pair in zip(updates, since, strict=True)),
        collectives=tuple(collectives),
        communication=_length(spans),
        hidden=_length(intersection(spans, union(computing))),
    )


def _holds(mark: KinetoEvent, moment: float) -> bool:
    """Tell whether a span lasts at a moment: an optimizer may call both passes as a closure."""
    return mark.ts <= moment < mark.end


def _forward_thread(events: Sequence[KinetoEvent], turned: float) -> Any:
    """Return the thread of most operations before the backward pass that autograd numbered."""
    threads = [e.tid for e in events if e.cat == "cpu_op" and e.number >= 0 and e.ts < turned]
    return max(sorted(set(threads), key=str), key=threads.count) if threads else None


def _check_one_pass(
    recording: KinetoProcess, ops: Sequence[KinetoEvent], nodes: Sequence[KinetoEvent], end: float
) -> None:
    """Reject a step in which a second forward pass follows the first backward pass."""
    held = innermost([n for n in nodes if n.tid == ops[0].tid], ops)
    numbers = {n.number for n in nodes if n.number >= 0}
    later = {
        op.number: op
        for op, node in zip(ops, held, strict=True)
        if op.number in numbers and node is None
    }
    if any(op.ts > nodes[0].ts for op in later.values()):
        raise CommschedError(
            f"{recording.where}: a step of {end / 1e6:.3g} s has several forward and backward"
            f" passes; record steps with one of each: {RECORD}"
        )


def _forward(
    clock: _Clock, own: Sequence[KinetoEvent], ops: Sequence[KinetoEvent], begin: float
) -> tuple[list[Forward], float]:
    """Return the operations of the forward pass, and when the last one ends."""
    modules = [e for e in own if e.name.startswith(MODULE)]
    inner = [e for e in own if e.cat == "cpu_op"]
    made: dict[int, list[KinetoEvent]] = {}
    starts = [op.ts for op in ops]
    for event in inner:
        place = bisect_right(starts, event.ts) - 1
        if place >= 0 and event.end <= ops[place].end:
            made.setdefault(place, []).append(event)
    found, at = [], begin
    for place, (op, module) in enumerate(zip(ops, innermost(modules, ops), strict=True)):
        done = max(at, clock.when(op.tid, op.end))
        parts = made.get(place, [])
        work = Work((done - at) / 1e6, sum(aten.recorded_flops(e) for e in parts))
        label = module.name.removeprefix(MODULE) if module else ""
        numbers = tuple(e.number for e in parts if e.number >= 0)
        found.append(Forward(op.name.removeprefix("aten::"), label, numbers, work))
        at = done
    return found, at


def _backward(
    recording: KinetoProcess,
    clock: _Clock,
    nodes: Sequence[KinetoEvent],
    everything: Sequence[KinetoEvent],
    at: float,
) -> list[Backward]:
    parts: dict[int, list[KinetoEvent]] = {}
    threads = {n.tid for n in nodes}
    starts = {t: [(n.ts, i) for i, n in enumerate(nodes) if n.tid == t] for t in threads}
    for event in everything:
        row = starts.get(event.tid, [])
        place = bisect_right(row, event.ts, key=lambda pair: pair[0]) - 1
        if place >= 0 and event.end <= nodes[row[place][1]].end:
            parts.setdefault(row[place][1], []).append(event)
    sent: dict[int, list[Gradient]] = {}
    for kernel in recording.kernels:
        row = starts.get(kernel.thread, [])
        place = bisect_right(row, kernel.given, key=lambda pair: pair[0]) - 1
        if kernel.communicates and kernel.sent and place >= 0:
            index = row[place][1]
            if kernel.given <= nodes[index].end and "educe" in kernel.name:
                sent.setdefault(index, []).append(kernel.sent)
    found = []
    for index, node in enumerate(nodes):
        done = max(at, clock.when(node.tid, node.end))
        inside = parts.get(index, [])
        work = Work((done - at) / 1e6, sum(aten.recorded_flops(e) for e in inside))
        number = max((e.number for e in inside[:2]), default=-1)
        gradients = tuple(g for e in inside if e.name == GRADIENT for g in _gradient(e))
        reduced = sent.get(index) or [g for e in inside for g in _all_reduced(e)]
        name = node.name.removeprefix(NODE)
        found.append(Backward(name, number, work, gradients, tuple(reduced)))
        at = done
    return found


def _gradient(event: KinetoEvent) -> list[Gradient]:
    """Return the gradient that an event accumulates; [] if the gradient is undefined."""
    first = event.inputs[:1]
    return [Gradient(g.shape, DTYPES.get(g.dtype, "float32")) for g in first if g.dtype]


def _all_reduced(event: KinetoEvent) -> list[Gradient]:
    """Return the buckets of an all-reduce, from the arguments of the host's call."""
    if event.name != "c10d::allreduce_":
        return []
    lists = event.args.get("Input Dims")
    first = lists[0] if isinstance(lists, list) and lists else None
    shapes = first if isinstance(first, list) else []
    return [Gradient(tuple(s), "float32") for s in shapes if isinstance(s, list) and s]


def _update(clock: _Clock, mark: KinetoEvent, since: float) -> float:
    """Return the seconds of an optimizer's step; its own work begins at `since`."""
    if not clock.on_device:
        return (mark.end - since) / 1e6
    own = [k for k in clock.kernels if k.thread == mark.tid and since <= k.given < mark.end]
    return (max(k.end for k in own) - min(k.start for k in own)) / 1e6 if own else 0.0


def _waiting(clock: _Clock, everything: Sequence[KinetoEvent], begin: float) -> float:
    """Return the seconds that a step waits for its batch: loading that no compute overlaps."""
    loads = outermost(e for e in everything if e.name.startswith(LOADER) and e.ts < begin)
    loading = sum(e.dur for e in loads)
    if clock.on_device and loads:
        before = max((k.end for k in clock.kernels if k.given < loads[0].ts), default=begin)
        loading = min(loading, max(begin - before, 0.0))
    return loading / 1e6


def _collectives(recording: KinetoProcess, start: float, end: float) -> list[Collective]:
    """Return the collectives of a step: kernels of a device, or spans of a library on the host."""
    found = [
        Collective(k.name, k.start, k.end, _nbytes(k.sent) if k.sent else 0.0)
        for k in recording.kernels
        if k.communicates and start <= k.given < end
    ]
    if not found:
        marks = (
            e for e in recording.everywhere(start, end) if e.name.startswith(("gloo:", "mpi:"))
        )
        for e in marks:
            sent = (g._replace(dtype=DTYPES.get(g.dtype, "float32")) for g in e.inputs)
            found.append(Collective(e.name, e.ts, e.end, sum(map(_nbytes, sent))))
    return found


def _nbytes(sent: Gradient) -> float:
    return float(prod(sent.shape) * WIDTHS[sent.dtype]) if sent.shape else 0.0


def _computing(
    recording: KinetoProcess,
    clock: _Clock,
    everything: Sequence[KinetoEvent],
    start: float,
    end: float,
) -> Intervals:
    if clock.on_device:
        spans = [(k.start, k.end) for k in clock.kernels if start <= k.given < end]
    else:
        spans = [(e.ts, e.end) for e in outermost(e for e in everything if e.cat == "cpu_op")]
    return _spans(spans)


def _spans(pairs: Sequence[tuple[float, float]]) -> Intervals:
    start, end = np.array(pairs, np.float64).reshape(-1, 2).T
    return union(intervals(np.zeros(len(pairs), np.int64), start, end))


def _length(spans: Intervals) -> float:
    return float((spans.end - spans.start).sum()) / 1e6
