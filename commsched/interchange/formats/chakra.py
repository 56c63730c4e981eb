"""Import of a Chakra execution trace: a layer is the compute before an all-reduce of gradients."""

import re
from collections import Counter
from collections.abc import Sequence

from commsched import units
from commsched.errors import CommschedError
from commsched.interchange.chakra_messages import (
    COLLECTIVE,
    COMPUTE,
    ChakraNode,
    nodes,
)
from commsched.interchange.content import Content
from commsched.interchange.registry import FORMATS, Format, Imported, Options
from commsched.net.graph import Layer, Net, Tensor
from commsched.net.measured import PROCESSOR, Measured

BACKWARD = re.compile(r"backward|bwd|(?<![a-z])[iw]g(?![a-z])|autograd", re.IGNORECASE)
FORWARD = re.compile(r"forward|fwd|fprop", re.IGNORECASE)


def recognises(content: Content) -> bool:
    """Tell whether a file may be a trace: 1 or 2 bytes of length, then version or attributes."""
    head = content.data[:3]
    if len(head) < 3 or head[:1] in (b"{", b"[", b"\x08"):
        return False
    return head[1 if head[0] < 128 else 2] in (0x0A, 0x12)


def read(content: Content, options: Options) -> Imported:
    """Make a layer of the compute before each all-reduce; its gradient is the all-reduce's bytes.

    The compute after the last all-reduce is the optimizer's. The trace does not tell which layers a
    bucket belongs to, so forward seconds are shared in the proportions of backward seconds.
    """
    found = nodes(content)
    used = _on_device(found)
    backward = _backward(found, used)
    if not any(backward):
        raise CommschedError(
            f"{content.where}: no node is named as part of a backward pass; record a training step"
        )
    used, notes = _of_one_group(used, backward.index(True), content.where)
    backward = _backward(found, used)
    turn = backward.index(True)
    _check_one_step(used, backward, content.where)
    forward = sum(node.seconds for node in used[:turn] if node.kind == COMPUTE)
    buckets, rest = _buckets(used[turn:])
    computed = sum(seconds for seconds, _ in buckets)
    if not buckets:
        raise CommschedError(
            f"{content.where}: no all-reduce with its 'comm_size' follows the backward pass: the"
            " gradients are not known; record a step of data-parallel training"
        )
    if not computed:
        raise CommschedError(
            f"{content.where}: no node of the backward pass has a duration; link the trace with the"
            " trace of torch.profiler of the same step (chakra_trace_link) and convert it again"
        )
    last = len(buckets) - 1
    layers = [
        Layer(
            name=f"bucket.{k}",
            after=(f"bucket.{k + 1}",) if k < last else (),
            forward=forward * seconds / computed,
            backward=seconds,
            tensors=(Tensor(name=f"bucket.{k}.0", shape=(max(nbytes // 4, 1),)),),
        )
        for k, (seconds, nbytes) in reversed(list(enumerate(buckets)))
    ]
    source = f"Chakra execution trace {content.where.rpartition('/')[2]}: durations of its nodes"
    batch = options.batch or 1
    on = "GPU" if not used[0].on_host else PROCESSOR
    net = Net(
        name=options.name,
        layers=tuple(layers),
        batch=batch,
        measured=Measured(device=on, batch=options.batch or 0, source=source),
        optimizer=rest or None,
        source=source,
    )
    others = [node for node in used if node.kind == COLLECTIVE and not node.sums]
    size = sum(nbytes for _, nbytes in buckets)
    notes.insert(
        0,
        f"{len(buckets)} all-reduces of {units.nbytes(size)} together, counted as float32; a layer"
        " is what computes up to one of them",
    )
    if others:
        notes.append(f"{len(others)} other collectives are not of gradients, and not in the net")
    data = {"all_reduces": len(buckets), "bytes": size, "nodes": len(found)}
    return Imported(net=net, notes=tuple(notes), data=data)


def _on_device(found: Sequence[ChakraNode]) -> list[ChakraNode]:
    """Return compute nodes and collectives in order; those of the device, if the trace has any."""
    kinds = (COMPUTE, COLLECTIVE)
    used = [node for node in found if node.kind in kinds and not node.on_host]
    used = used or [node for node in found if node.kind in kinds]
    return sorted(used, key=lambda node: (node.start, node.number))


def _backward(found: Sequence[ChakraNode], used: Sequence[ChakraNode]) -> list[bool]:
    """Return the nodes of a backward pass, recognised by their own name or that of an input."""
    names = {node.number: node.name for node in found}
    said = ([node.name, *(names.get(number, "") for number in node.inputs)] for node in used)
    return [
        node.kind == COMPUTE and any(map(BACKWARD.search, words))
        for node, words in zip(used, said, strict=True)
    ]


def _of_one_group(
    used: Sequence[ChakraNode], turn: int, where: str
) -> tuple[list[ChakraNode], list[str]]:
    """Leave out all-reduces of process groups that do not sum gradients, and return notes on them.

    If there are several groups, a group that also sums in the forward pass sums activations.
    """
    sizes = Counter[str]()
    for node in used[turn:]:
        if node.sums and node.facts.get("comm_size", 0) > 0:
            sizes[node.group] += node.facts["comm_size"]
    if len(sizes) < 2:
        return list(used), []
    said = {name: f"{name[:40]!a} ({units.nbytes(size)})" for name, size in sizes.items()}
    aside = {node.group for node in used[:turn] if node.sums} & said.keys()
    if len(said) - len(aside) != 1:
        raise CommschedError(
            f"{where}: process groups {', '.join(said.values())} have all-reduces in the backward"
            " pass or after it, and the trace does not tell which of them are of gradients; record"
            " a step of data-parallel training alone"
        )
    left = [node for node in used if not (node.sums and node.group in aside)]
    return left, [
        f"all-reduces of process group {said[name]} are not of gradients, and not in the net: the"
        " group also has some in the forward pass"
        for name in sorted(aside)
    ]


def _check_one_step(used: Sequence[ChakraNode], backward: Sequence[bool], where: str) -> None:
    """Reject a trace in which another forward pass follows the first all-reduce of gradients.

    Forward nodes run before the first backward pass; they are named so, or occur again later. A
    backward pass that recomputes activations has fewer forward nodes after the first all-reduce:
    those of its first segment come before any gradient.
    """
    turn = backward.index(True)
    sums = [i for i, n in enumerate(used) if i >= turn and n.sums]
    if not sums:
        return
    before = Counter(n.name for n in used[:turn] if n.kind == COMPUTE)
    after = Counter(
        n.name
        for n, back in zip(used[sums[0] :], backward[sums[0] :], strict=True)
        if n.kind == COMPUTE and (not back or FORWARD.search(n.name))
    )
    named, again = (
        sum(count for name, count in some.items() if FORWARD.search(name))
        for some in (before, after)
    )
    if 0 < named <= again or (before and before <= after):
        raise CommschedError(f"{where}: the trace is of several steps; record or export one step")


def _buckets(used: Sequence[ChakraNode]) -> tuple[list[tuple[float, int]], float]:
    """Return (compute seconds before it, bytes) of each all-reduce, and the seconds after all."""
    buckets: list[tuple[float, int]] = []
    spent = 0.0
    for node in used:
        if node.kind == COMPUTE:
            spent += node.seconds
        elif node.sums and node.facts.get("comm_size", 0) > 0:
            buckets.append((spent, node.facts["comm_size"]))
            spent = 0.0
    return buckets, spent


FORMATS.add("chakra")(Format("a Chakra execution trace (protobuf)", recognises, read, axes=False))
