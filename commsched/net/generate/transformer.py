"""GPT-style nets of any size from closed formulas: parameters, flops, traffic and activations."""

from collections.abc import Iterator
from dataclasses import replace

from commsched.net.graph import Layer, Net, Tensor

SOURCE = (
    "generated from formulas by commsched.net.generate.transformer: sizes from Brown et al.,"
    " 'Language models are few-shot learners', NeurIPS 2020, table 2.1; flops from Narayanan et"
    " al., 'Efficient large-scale language model training on GPU clusters', SC 2021, appendix"
    " (without recomputation); activations from Korthikanti et al., 'Reducing activation"
    " recomputation in large transformer models', 2022, equation 1; memory traffic estimated:"
    " every operand of an unfused float16 kernel moves once, backward twice the forward; nothing"
    " here is measured"
)
# Outputs of a block's layers, in tokens of the hidden size; inside a branch the residual is one.
WIDTHS = (2, 4, 2, 1, 2, 5, 1)


def gpt(
    name: str, *, layers: int, hidden: int, heads: int, sequence: int, vocabulary: int, batch: int
) -> Net:
    """Build a decoder-only transformer; `batch` sequences per rank and step, float16.

        parameters = 12 l h^2 + 13 l h + (V + s) h + 2 h
        forward flops = 24 b s l h^2 (1 + s / (6 h) + V / (12 l h)); backward twice that
        activation bytes = l s b h (34 + 5 a s / h) + 5 s b h + 4 s b V
    output bytes between two blocks = 2 s b h

    l = layers; h = hidden; a = heads; s = sequence; V = vocabulary; b = batch. The output of a
    layer inside a residual branch includes what passes beside the branch.
    Source: see SOURCE. Holds for a tied output head, float16 and no recomputation.
    """
    tokens = sequence * batch
    stream = 2.0 * tokens * hidden  # B between two blocks
    blocks = [_block(i, hidden, heads, sequence, batch) for i in range(layers)]
    head_flops = 2.0 * tokens * hidden * vocabulary
    every: list[Layer] = [
        replace(embedding_layer(tokens, sequence, hidden, vocabulary), output=stream),
        *(layer for block in blocks for layer in block),
        replace(norm_layer("ln_f", tokens, hidden), output=stream),
        Layer(
            name="head",  # its matrix is wte, whose gradient is complete after the embedding
            forward_flops=head_flops,
            backward_flops=2 * head_flops,
            matrix=(tokens, hidden, vocabulary),
            forward_bytes=2.0 * (vocabulary * hidden + tokens * (hidden + vocabulary)),
            backward_bytes=4.0 * (vocabulary * hidden + tokens * (hidden + vocabulary)),
            activation=2.0 * tokens * hidden + 4.0 * tokens * vocabulary,
            cut="columns",
            summed=tokens * hidden,
            whole=2.0 * tokens * hidden,
        ),
    ]
    return Net(name=name, layers=tuple(_chained(every)), batch=batch, source=SOURCE)


def _block(i: int, hidden: int, heads: int, sequence: int, batch: int) -> list[Layer]:
    """Return the layers of one block; shares of its activation sum to s b h (34 + 5 a s / h)."""
    tokens, h = sequence * batch, hidden
    squares = heads * sequence * sequence * batch  # elements of all attention matrices
    score_flops = 4.0 * tokens * sequence * h
    score_bytes = 8.0 * tokens * h + 13.0 * squares
    made = [
        norm_layer(f"h.{i}.ln_1", tokens, h),
        matrix_layer(
            f"h.{i}.attn.qkv", tokens, h, 3 * h, kept=2.0 * tokens * h, cut="columns", parts=heads
        ),
        Layer(
            name=f"h.{i}.attn.scores",
            forward_flops=score_flops,
            backward_flops=2 * score_flops,
            forward_bytes=score_bytes,
            backward_bytes=2 * score_bytes,
            activation=6.0 * tokens * h + 5.0 * squares,
            cut="inside",
            parts=heads,
        ),
        matrix_layer(
            f"h.{i}.attn.proj", tokens, h, h, kept=3.0 * tokens * h, cut="rows", parts=heads
        ),
        norm_layer(f"h.{i}.ln_2", tokens, h),
        matrix_layer(
            f"h.{i}.mlp.fc", tokens, h, 4 * h, kept=2.0 * tokens * h, cut="columns", parts=4 * h
        ),
        matrix_layer(
            f"h.{i}.mlp.proj", tokens, 4 * h, h, kept=17.0 * tokens * h, cut="rows", parts=4 * h
        ),
    ]
    return [
        replace(layer, block=f"h.{i}", output=2.0 * width * tokens * h)
        for layer, width in zip(made, WIDTHS, strict=True)
    ]


def matrix_layer(
    name: str,
    tokens: int,
    inputs: int,
    outputs: int,
    *,
    kept: float,
    cut: str,
    parts: int,
    whole: float | None = None,
) -> Layer:
    """Build a matrix product and its bias, cut by columns or rows into `parts`; it keeps `kept` B.

    whole: of these, what each rank keeps; None: before columns the inputs, and behind rows the mask
    of a dropout.
    """
    flops = 2.0 * tokens * inputs * outputs
    traffic = 2.0 * (inputs * outputs + tokens * (inputs + outputs))
    rows = cut == "rows"
    if whole is None:
        whole = 1.0 * tokens * outputs if rows else kept
    weight, bias = (0, -1) if rows else (1, 0)  # axes
    return Layer(
        name=name,
        tensors=(
            Tensor(name=f"{name}.weight", shape=(inputs, outputs), dtype="float16", axis=weight),
            Tensor(name=f"{name}.bias", shape=(outputs,), dtype="float16", axis=bias),
        ),
        forward_flops=flops,
        backward_flops=2 * flops,
        matrix=(tokens, inputs, outputs),
        forward_bytes=traffic,
        backward_bytes=2 * traffic,
        activation=kept,
        cut=cut,
        parts=parts,
        summed=tokens * (outputs if rows else inputs),
        whole=whole,
    )


def embedding_layer(tokens: int, sequence: int, hidden: int, vocabulary: int) -> Layer:
    """Make the tables of tokens and positions, and their dropout."""
    return Layer(
        name="embedding",
        tensors=(
            Tensor(name="wte.weight", shape=(vocabulary, hidden), dtype="float16", axis=0),
            Tensor(name="wpe.weight", shape=(sequence, hidden), dtype="float16"),
        ),
        forward_bytes=6.0 * tokens * hidden,
        backward_bytes=12.0 * tokens * hidden,
        activation=1.0 * tokens * hidden,  # dropout mask
        cut="rows",
        summed=tokens * hidden,
        whole=1.0 * tokens * hidden,
    )


def norm_layer(name: str, tokens: int, hidden: int) -> Layer:
    return Layer(
        name=name,
        tensors=(
            Tensor(name=f"{name}.weight", shape=(hidden,), dtype="float16"),
            Tensor(name=f"{name}.bias", shape=(hidden,), dtype="float16"),
        ),
        forward_bytes=4.0 * tokens * hidden,
        backward_bytes=8.0 * tokens * hidden,
        activation=2.0 * tokens * hidden,
    )


def _chained(layers: list[Layer]) -> Iterator[Layer]:
    before: tuple[str, ...] = ()
    for layer in layers:
        yield replace(layer, after=before)
        before = (layer.name,)
