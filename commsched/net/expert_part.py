"""One rank's part of a net whose experts several ranks share."""

from dataclasses import replace

from commsched.errors import CommschedError
from commsched.net.graph import Layer, Net, Tensor


def expert_degrees(net: Net, most: int) -> list[int]:
    """List how many ranks, up to `most`, can share the experts of a net equally."""
    counts = {layer.experts.count for layer in net.layers if layer.experts}
    if not counts:
        return [1]
    return [k for k in range(1, most + 1) if all(count % k == 0 for count in counts)]


def expert_part(net: Net, ranks: int, among: int = 0) -> Net:
    """Return the part of a net that each of `ranks` ranks with different experts holds.

    A rank has 1 / ranks of the experts, whose tensors have the experts as axis 0, and every other
    tensor whole; tensors of single experts are joined first. The rank computes as much as before,
    since its experts serve the tokens of all `ranks`, but reads fewer parameters. among: the number
    of all ranks, which the nearest number in an error must divide.
    """
    if net.experts == ranks > 1:
        return net
    net = replace(net, layers=tuple(_stacked(net, layer) for layer in net.layers))
    if net.experts != 1:
        raise CommschedError(
            f"net {net.name!r} is the part of one of {net.experts} ranks that share experts; it"
            f" cannot be shared by {ranks}; nearest: expert={net.experts}"
        )
    for layer in net.layers:
        _check_tensors(net, layer)
    known = [k for k in expert_degrees(net, ranks) if among % k == 0]
    if not any(layer.experts for layer in net.layers):
        raise CommschedError(
            f"net {net.name!r} has no layers of experts; nearest: --strategy sync, or a net such as"
            " 'gpt-moe-8'"
        )
    if among % ranks:
        raise CommschedError(
            f"strategy 'expert': {among} ranks do not divide into teams of {ranks}; nearest:"
            f" expert={known[-1]}"
        )
    if known[-1] != ranks:
        layer = next(x for x in net.layers if x.experts and x.experts.count % ranks)
        assert layer.experts is not None
        raise CommschedError(
            f"net {net.name!r}: the {layer.experts.count} experts of layer {layer.name!r} cannot be"
            f" shared by {ranks} ranks; nearest: expert={known[-1]}"
        )
    layers = tuple(_part(layer, ranks) if layer.experts else layer for layer in net.layers)
    return net.part(layers, experts=ranks)


def _stacked(net: Net, layer: Layer) -> Layer:
    """Join the tensors of a layer's experts if each expert has its own."""
    stacks: dict[str, list[Tensor]] = {}
    for tensor in layer.tensors:
        stacks.setdefault(tensor.stack or tensor.name, []).append(tensor)
    found = []
    for name, (first, *others) in stacks.items():
        if not first.stack:
            found.append(first)
            continue
        count = layer.experts.count if layer.experts else 0
        alike = all((t.shape, t.dtype) == (first.shape, first.dtype) for t in others)
        if not alike or count != 1 + len(others):
            raise CommschedError(
                f"net {net.name!r}: stack {name!r} of layer {layer.name!r} needs a tensor of one"
                f" shape and dtype for each of its {count} experts, got {1 + len(others)}"
            )
        shape = (count, *first.shape)
        found.append(Tensor(name=name, shape=shape, dtype=first.dtype, axis=0, decay=first.decay))
    return replace(layer, tensors=tuple(found))


def _check_tensors(net: Net, layer: Layer) -> None:
    """Refuse a layer whose tensors are not those of as many experts as it says."""
    sizes = {tensor.shape[0] for tensor in layer.tensors if is_expert(layer, tensor)}
    if layer.experts is not None and sizes != {layer.experts.count}:
        found = f"axes of {', '.join(map(str, sorted(sizes)))}" if sizes else "none of axis 0"
        raise CommschedError(
            f"net {net.name!r}: layer {layer.name!r} needs tensors whose axis 0 are its"
            f" {layer.experts.count} experts, got {found}"
        )


def is_expert(layer: Layer, tensor: Tensor) -> bool:
    """Tell whether a tensor belongs to experts, so that ranks which share them hold parts of it."""
    return layer.experts is not None and (tensor.axis == 0 or bool(tensor.stack))


def _part(layer: Layer, ranks: int) -> Layer:
    """Return one rank's part of a layer of experts."""
    tensors = tuple(_cut(t, ranks) if is_expert(layer, t) else t for t in layer.tensors)
    before, after = (sum(t.nbytes for t in some) for some in (layer.tensors, tensors))
    unread = before - after  # B of parameters, read once forward and twice backward
    return replace(
        layer,
        tensors=tensors,
        forward_bytes=max(layer.forward_bytes - unread, 0.0),
        backward_bytes=max(layer.backward_bytes - 2 * unread, 0.0),
    )


def _cut(tensor: Tensor, ranks: int) -> Tensor:
    return replace(tensor, shape=(tensor.shape[0] // ranks, *tensor.shape[1:]))
