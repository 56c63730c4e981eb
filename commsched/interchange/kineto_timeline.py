"""A torch.profiler trace as the measured side of a comparison with a prediction."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from commsched import files
from commsched.errors import CommschedError
from commsched.interchange import content, kineto_events
from commsched.interchange.formats import kineto
from commsched.interchange.kineto_steps import RecordedStep
from commsched.interchange.passes import LayerWork
from commsched.program.layer_ops import DIRECTIONS
from commsched.program.model import is_exchange_stream
from commsched.timeline import check
from commsched.timeline import file as timeline_file
from commsched.timeline.header import RunHeader
from commsched.timeline.model import Span, Timeline


def read_pair(first: Path, second: Path) -> tuple[Timeline, Timeline]:
    """Read two timelines; one may be a trace, which is then read with the plan of the other."""
    if is_trace(first):
        if is_trace(second):
            raise CommschedError(
                f"{first} and {second} are both traces of another program; one of the two must be a"
                " timeline, whose plan says what the trace's layers are: `commsched simulate`"
            )
        found = read_pair(second, first)
        return found[1], found[0]
    one = timeline_file.read(first)
    return one, (measured(second, one) if is_trace(second) else timeline_file.read(second))


def is_trace(path: Path) -> bool:
    """Tell whether a file is a trace of another program: packed, or without a timeline's header."""
    head = files.head(path, 4096)
    return head.startswith(content.GZIP) or b'"schemaVersion"' in head


def measured(path: Path, predicted: Timeline) -> Timeline:
    """Return a trace's steps as a timeline that uses the names of a prediction.

    Layers are spans of the compute stream, one after the other; the first one also waits for the
    batch. If a step has as many all-reduces as the prediction has exchanges, they get those names.
    """
    recording = kineto_events.read(content.read(path))
    steps, layers = kineto.alike(recording)
    _check_layers(path, {layer.name for layer in layers[0]}, predicted)
    alone = not recording.world and not any(step.collectives for step in steps)
    size = recording.world.get("world_size", predicted.ranks)
    rank = recording.world.get("rank", 0)
    if size != predicted.ranks or not isinstance(rank, int) or not 0 <= rank < predicted.ranks:
        raise CommschedError(
            f"{path}: the trace is of rank {rank} of {size} ranks, the prediction of"
            f" {predicted.ranks} ranks; plan with as many"
        )
    how = "in one process that exchanges nothing" if alone else f"on rank {rank} alone"
    warnings = (f"measured by torch.profiler {how}",) if size > 1 else ()
    spans = [
        span
        for number, (step, some) in enumerate(zip(steps, layers, strict=True))
        for span in _spans(number, step, some, rank, _exchanges(predicted))
    ]
    begin = min(span.start for span in spans)
    found = Timeline.of(
        (s._replace(start=s.start - begin, end=s.end - begin) for s in spans),
        header=RunHeader(
            net=path.name, steps=len(steps), compute="torch.profiler", warnings=warnings
        ),
        plan_hash=predicted.plan_hash,
        ranks=predicted.ranks,
        streams=predicted.streams,
        names=predicted.names,
    )
    wrong = check.problem(found)
    if wrong:
        raise CommschedError(f"{path}: {wrong}")
    return found


def _check_layers(path: Path, trace: set[str], predicted: Timeline) -> None:
    """Reject a trace whose layers are not those of the prediction."""
    word = f"{DIRECTIONS[True]}/"
    names = (name for name in predicted.names if name.startswith(word))
    differ = trace ^ {name.removeprefix(word) for name in names}
    if differ:
        some = min(differ)
        which = "trace" if some in trace else "prediction"
        raise CommschedError(
            f"{path}: only the {which} has layer {some!r}; plan and simulate the net that"
            " `commsched import` makes of this trace"
        )


def _exchanges(predicted: Timeline) -> list[tuple[str, str]]:
    """Return name and stream of the prediction's exchanges of a step, in order."""
    rows = {
        (predicted.names[n], predicted.streams[s]): start
        for n, s, start in zip(
            predicted.name.tolist(), predicted.stream.tolist(), predicted.start, strict=True
        )
        if is_exchange_stream(predicted.streams[s])
    }
    return sorted(rows, key=lambda row: rows[row])


def _spans(
    number: int,
    step: RecordedStep,
    layers: Sequence[LayerWork],
    rank: int,
    exchanges: Sequence[tuple[str, str]],
) -> Iterator[Span]:
    """Yield a step's spans; the optimizer's follows the backward pass and the last exchange."""
    now = step.begin / 1e6 - step.data
    waits = {layers[0].name: step.data}
    rows = [(False, layer.name, layer.forward.seconds) for layer in layers]
    rows += [(True, layer.name, layer.backward.seconds) for layer in reversed(layers)]
    for backward, name, spent in rows:
        seconds = spent + (0.0 if backward else waits.get(name, 0.0))
        label = f"{DIRECTIONS[backward]}/{name}"
        yield Span(rank, "compute", label, number, now, now + seconds, 0.0, 0)
        now += seconds
    sums = sorted((c for c in step.collectives if "educe" in c.name), key=lambda c: c.start)
    known = len(sums) == len(exchanges)
    for k, one in enumerate(sums):
        name, stream = exchanges[k] if known else (f"all_reduce.{k}", "between")
        start, end = one.start / 1e6, one.end / 1e6
        yield Span(rank, stream, name, number, start, end, 0.0, one.nbytes)
        now = max(now, end)
    if step.optimizer:
        yield Span(rank, "compute", "optimizer", number, now, now + step.optimizer, 0.0, 0)
