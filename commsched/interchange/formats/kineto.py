"""Import of a Chrome trace of torch.profiler (Kineto): measured layers of training steps."""

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

from commsched import units
from commsched.errors import CommschedError
from commsched.interchange import kineto_events, kineto_steps
from commsched.interchange.content import Content
from commsched.interchange.kineto_events import RECORD, KinetoEvent, KinetoProcess
from commsched.interchange.kineto_steps import RecordedStep
from commsched.interchange.passes import LayerWork, layers_of
from commsched.interchange.registry import FORMATS, Format, Imported, Options
from commsched.machine.devices import recognised
from commsched.net.graph import Layer, Net
from commsched.net.measured import PROCESSOR, Measured

LINEAR, EMBEDDING, ATTENTION = "aten::linear", "aten::embedding", "scaled_dot_product"
CONVOLUTIONS = tuple(f"aten::conv{kind}" for kind in ("1d", "2d", "3d", "_transpose", "olution"))
RECURRENT = ("aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu")
HALF = ("c10::half", "c10::bfloat16", "half", "bfloat16")


def recognises(content: Content) -> bool:
    """Tell whether a file may be a trace of torch.profiler."""
    return content.head[:1] == b"{" and b'"traceEvents"' in content.data


def read(content: Content, options: Options) -> Imported:
    """Make a net of a trace: medians over the steps with equal layers."""
    recording = kineto_events.read(content)
    steps, layers = alike(recording)
    made = [_layer([each[i] for each in layers], i, layers[0]) for i in range(len(layers[0]))]
    batch, note = (options.batch, "") if options.batch else _batch(recording, steps[0])
    data = _summary(steps)
    source = (
        f"torch.profiler trace {content.where.rpartition('/')[2]}: medians of {len(steps)} steps"
        f"{_exchanged(data)}"
    )
    net = Net(
        name=options.name,
        layers=tuple(made),
        batch=batch or 1,
        measured=_measured(recording, batch, source),
        optimizer=median(step.optimizer for step in steps) or None,
        data=median(step.data for step in steps),
        source=source,
    )
    notes = [*_notes(recording, steps, layers[0], data), *([note] if note else [])]
    return Imported(net=net, notes=tuple(notes), data=data)


def alike(recording: KinetoProcess) -> tuple[list[RecordedStep], list[list[LayerWork]]]:
    """Return the steps with the most frequent layers, and these layers in each of them."""
    steps = kineto_steps.steps(recording)
    layers = [layers_of(step.forward, step.backward) for step in steps]
    gradients = [g for step in steps for node in step.backward for g in node.gradients]
    if not gradients:
        raise CommschedError(
            f"{recording.where}: no step has a forward and a backward pass with gradients of"
            f" parameters; {RECORD}"
        )
    kinds = Counter(_kind(some) for some in layers if some)
    if not kinds:
        raise CommschedError(
            f"{recording.where}: neither the shapes of gradients nor the sizes of all-reduces are"
            f" recorded; {RECORD}"
        )
    usual = kinds.most_common(1)[0][0]
    keep = [i for i, some in enumerate(layers) if some and _kind(some) == usual]
    return [steps[i] for i in keep], [layers[i] for i in keep]


def _kind(layers: Sequence[LayerWork]) -> tuple[Any, ...]:
    return tuple((layer.name, *layer.gradients) for layer in layers)


def _layer(same: Sequence[LayerWork], place: int, first: Sequence[LayerWork]) -> Layer:
    """Return a layer's medians."""
    one = same[0]
    return Layer(
        name=one.name,
        after=(first[place - 1].name,) if place else (),
        forward=median(layer.forward.seconds for layer in same),
        backward=median(layer.backward.seconds for layer in same),
        forward_flops=one.forward.flops,
        backward_flops=one.backward.flops,
        tensors=one.tensors,
    )


def _batch(recording: KinetoProcess, step: RecordedStep) -> tuple[int, str]:
    """Return the samples of a step (0: not known), and a note if the number is uncertain.

    The samples are an axis of the first input. If there are several axes, a later operator tells
    which one is the batch.
    """
    first, axes = "", tuple[int, ...]()
    for event in recording.everywhere(0.0, step.end):
        found = _axes(event)
        if min(found, default=0) < 1:
            continue
        if len(found) == 1 and (not axes or (found[0] in axes and event.name != LINEAR)):
            return found[0], ""
        if not axes:
            first, axes = event.name, found
    if first.startswith(EMBEDDING):
        return axes[0], (
            f"the batch, {axes[0]}, is the first axis of an embedding's input, which may be the"
            " sequence; if so, state the batch by --batch"
        )
    return 0, "the trace does not tell the batch: the net says 1; state it by --batch"


def _axes(event: KinetoEvent) -> tuple[int, ...]:
    """Return the sizes of an operator's input that may be the batch; (): none can be told.

    A recurrent operator's state is (layers, batch, hidden) for any order of its input's axes.
    """
    x, y = (*event.shapes, (), ())[:2]
    if event.name in RECURRENT:
        return next((shape[1:2] for shape in event.shapes[1:] if len(shape) == 3), ())
    if ATTENTION in event.name:
        return x[:1] if len(x) == 4 else ()
    if event.name.startswith(CONVOLUTIONS):
        return x[:1] if len(x) == len(y) else ()
    if event.name.startswith(EMBEDDING):
        return y if len(y) > 1 else ()  # an input with one axis may hold positions
    return x[:-1] if event.name == LINEAR else ()


def _measured(recording: KinetoProcess, batch: int, source: str) -> Measured:
    half = any(
        one.dtype in HALF
        for events in recording.host.values()
        for e in events
        if e.name in ("aten::mm", "aten::addmm", "aten::bmm", "aten::convolution")
        for one in e.inputs
    )
    known = recognised(recording.device) if recording.device else None
    device = known.device if known else None
    return Measured(
        device=recording.device or PROCESSOR,
        flops=device.flops if device and device.precision == "float16" else None,
        bandwidth=device.bandwidth if device else None,
        efficiency=device.efficiency if device else 1.0,
        precision="float16" if half else "float32",
        batch=batch,
        source=source,
    )


def _summary(steps: Sequence[RecordedStep]) -> dict[str, Any]:
    """Return medians over the steps, and each kind of collective."""
    kinds: dict[str, list[float]] = {}
    for step in steps:
        for each in step.collectives:
            kinds.setdefault(each.name.partition("(")[0], []).append(each.nbytes)
    communication = median(step.communication for step in steps)
    return {
        "steps": len(steps),
        "forward_seconds": median(sum(o.work.seconds for o in step.forward) for step in steps),
        "backward_seconds": median(sum(o.work.seconds for o in step.backward) for step in steps),
        "data_seconds": median(step.data for step in steps),
        "optimizer_seconds": median(step.optimizer for step in steps),
        "communication_seconds": communication,
        "overlap": median(step.hidden for step in steps) / communication if communication else None,
        "collectives": {
            name: {"per_step": len(some) / len(steps), "bytes": sum(some) / len(steps)}
            for name, some in kinds.items()
        },
    }


def _notes(
    recording: KinetoProcess,
    steps: Sequence[RecordedStep],
    layers: Sequence[LayerWork],
    data: dict[str, Any],
) -> list[str]:
    found = []
    if layers[0].name.startswith("bucket."):
        found.append(
            "the shapes of gradients are not recorded: a layer is a bucket that was all-reduced;"
            " record_shapes=True tells layers apart"
        )
    elif not any(op.module for op in steps[0].forward):
        found.append("layers are named by operations; with_stack=True records the modules' names")
    lost = [layer.name for layer in layers if layer.place < 0 and not layer.name.startswith("buck")]
    if lost:
        found.append(
            f"the forward of {len(lost)} layers is not told apart (first: {lost[0]}): autograd's"
            " numbers lead to no operation, as with checkpointing"
        )
    for name, row in data["collectives"].items():
        text = f"{row['per_step']:.3g} x {name} a step"
        found.append(text + (f", {units.nbytes(row['bytes'])} together" if row["bytes"] else ""))
        if "educe" not in name:
            found[-1] += ": not of gradients, and not in the net"
    if data["communication_seconds"]:
        found.append(_exchanged(data).removeprefix("; "))
    return found


def _exchanged(data: dict[str, Any]) -> str:
    """Say how long a step's collectives take, and which share is hidden; "" without any."""
    spent = data["communication_seconds"]
    if not spent:
        return ""
    return (
        f"; collectives take {units.seconds(spent)} a step, {data['overlap']:.0%} of it while the"
        " rank computes"
    )


FORMATS.add("kineto")(Format("a Chrome trace of torch.profiler", recognises, read, axes=False))
