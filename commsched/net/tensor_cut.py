"""One rank's part of a net whose matrix products tensor-parallel ranks share."""

from dataclasses import replace
from itertools import repeat

from commsched.errors import CommschedError
from commsched.net.graph import Layer, Net, Tensor

# Directions in which a cut layer needs a sum: of its outputs forward, of its inputs' gradient back.
SUMS = {"columns": (True,), "rows": (False,), "inside": (), "pair": (False, True)}
# If ranks share tokens: how often a cut layer gathers them, forward and backward. Before columns
# the inputs, in both directions, as each rank keeps those of its tokens; of rows the gradient.
GATHERS = {"columns": (1, 1), "rows": (0, 1), "inside": (0, 0), "pair": (1, 2)}


def sums(layer: Layer, backward: bool) -> bool:
    """Tell whether tensor-parallel ranks sum after this direction of a layer."""
    return bool(layer.cut) and backward in SUMS[layer.cut]


def gathers(layer: Layer, backward: bool) -> int:
    """Count the all-gathers in this direction of a layer whose ranks share tokens elsewhere."""
    return GATHERS[layer.cut][backward] if layer.cut else 0


def is_cut(layer: Layer) -> bool:
    """Tell whether tensor-parallel ranks share a layer's work."""
    return bool(layer.cut)


def degrees(net: Net, most: int) -> list[int]:
    """List how many ranks, up to `most`, can share the layers of a net."""
    parts = {layer.parts for layer in net.layers if layer.cut and layer.parts}
    if net.experts_of or not any(map(is_cut, net.layers)):
        return [1]
    return [k for k in range(1, most + 1) if all(count % k == 0 for count in parts)]


def cut_net(net: Net, ranks: int, sequence: bool = False) -> Net:
    """Return the part of a net that each of `ranks` tensor-parallel ranks computes.

    columns: each rank has columns of the matrix, whole inputs and its part of the outputs; the
    gradient of the inputs is summed. rows: each has rows of the matrix and its part of the inputs;
    the outputs are summed. inside: between these two, inputs and outputs are in parts. pair: a
    layer that begins with columns and ends with rows. Work and tensors of a cut layer are divided,
    and so is what it keeps, but for `Layer.whole`.
    sequence: sums end in runs of the tokens, one per rank, and are gathered before columns; all
    work and all that is kept is then divided. Holds for layers without a cut that treat each token
    alone.
    Source: Shoeybi et al., "Megatron-LM", arXiv 1909.08053, section 3; activations: Korthikanti et
    al., "Reducing activation recomputation in large transformer models", MLSys 2023, equations 2
    and, of sequence parallelism, 4.
    """
    if net.tensor == ranks > 1:
        if (net.sequence > 1) != sequence:
            raise CommschedError(
                f"net {net.name!r} is the part of one of {ranks} tensor-parallel ranks, made for"
                f" sequence={1 - sequence}; nearest: sequence={1 - sequence}"
            )
        return net
    if net.tensor != 1:
        raise CommschedError(
            f"net {net.name!r} is the part of one of {net.tensor} tensor-parallel ranks; it cannot"
            f" be cut for {ranks}; nearest: tensor={net.tensor}"
        )
    _check(net, ranks)
    layers = tuple(_cut(layer, ranks) if layer.cut else layer for layer in net.layers)
    if not sequence or ranks == 1:
        return net.part(layers, tensor=ranks)
    odd = next((x for x in net.layers if x.cut and x.summed % ranks), None)
    if odd is not None:
        raise CommschedError(
            f"net {net.name!r}: tokens of {odd.summed} elements, which layer {odd.name!r} sums, do"
            f" not divide among {ranks} ranks; nearest: sequence=0"
        )
    layers = tuple(map(_of_tokens, net.layers, layers, repeat(ranks)))
    return net.part(layers, tensor=ranks, sequence=ranks)


def _check(net: Net, ranks: int) -> None:
    """Refuse a net whose layers cannot be shared by `ranks` ranks."""
    known = degrees(net, ranks)
    if known[-1] == ranks:
        return
    where = f"net {net.name!r}"
    if net.experts_of:
        raise CommschedError(
            f"{where} has layers of experts, which tensor-parallel ranks do not share; nearest:"
            " tensor=1, or --strategy expert"
        )
    if not any(map(is_cut, net.layers)):
        raise CommschedError(
            f"{where} has no layers that {ranks} ranks can share: none says how its matrix is cut;"
            " nearest: tensor=1, or a net such as 'gpt3-1.3b'"
        )
    layer = next(x for x in net.layers if x.cut and x.parts and x.parts % ranks)
    raise CommschedError(
        f"{where}: the {layer.parts} parts of layer {layer.name!r} cannot be shared by {ranks}"
        f" ranks; nearest: tensor={known[-1]}"
    )


def _cut(layer: Layer, ranks: int) -> Layer:
    """Return one rank's part of a layer."""
    part = layer.scaled(1.0, 1 / ranks)
    matrix = layer.matrix
    if matrix and layer.cut in ("columns", "rows"):
        place = 2 if layer.cut == "columns" else 1
        sizes = [-(-n // ranks) if i == place else n for i, n in enumerate(matrix)]
        matrix = tuple(sizes)
    output = layer.output
    if not output and layer.cut in ("rows", "pair"):
        output = float(layer.summed * max((t.nbytes // t.numel for t in layer.tensors), default=4))
    return replace(
        part,
        output=output,
        matrix=matrix,
        activation=layer.whole + (layer.activation - layer.whole) / ranks,
        tensors=tuple(_part(tensor, ranks) for tensor in layer.tensors),
    )


def _of_tokens(layer: Layer, part: Layer, ranks: int) -> Layer:
    """Return one rank's part of a layer outside which ranks share tokens."""
    kept = layer.activation / ranks
    if layer.cut in ("columns", "inside"):
        return replace(part, activation=kept)
    output = part.output / ranks
    if layer.cut:
        return replace(part, activation=kept, output=output)
    matrix = layer.matrix and (-(-layer.matrix[0] // ranks), *layer.matrix[1:])
    work = layer.scaled(1.0, 1 / ranks)
    return replace(work, activation=kept, output=output, matrix=matrix)


def _part(tensor: Tensor, ranks: int) -> Tensor:
    """Return one rank's part of a tensor; a table that cannot be divided is padded."""
    if tensor.axis < 0:
        return tensor
    sizes = [-(-n // ranks) if i == tensor.axis else n for i, n in enumerate(tensor.shape)]
    return replace(tensor, shape=tuple(sizes))
