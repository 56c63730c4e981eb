"""GPT nets kernel by kernel, as Megatron-LM computes them on each tensor-parallel rank."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from commsched.net.generate.transformer import embedding_layer, matrix_layer, norm_layer
from commsched.net.graph import Layer, Net

SOURCE = (
    "generated from formulas by commsched.net.generate.megatron: flops from Narayanan et al.,"
    " 'Efficient large-scale language model training on GPU clusters', SC 2021, appendix; kernels,"
    " fused bias with GeLU, bias with dropout and residual, scale with mask and softmax: the same,"
    " section 4.2; activations, sequence parallelism and selective recomputation: Korthikanti et"
    " al., 'Reducing activation recomputation in large transformer models', MLSys 2023; memory"
    " traffic: every operand of a kernel moves once; nothing here is measured"
)
FULL = "cross-entropy"  # computed in float32


def megatron(
    name: str,
    *,
    layers: int,
    hidden: int,
    heads: int,
    sequence: int,
    vocabulary: int,
    batch: int,
    scattered: int = 1,
    sequence_parallel: bool = False,
    selective: bool = False,
    flash: bool = False,
    accumulated: float = 0.0,
) -> Net:
    """Build a GPT of `batch` sequences in a microbatch, float16; a block is one unit of a stage.

    scattered: ranks that each send their part of what crosses a cut between stages.
    sequence_parallel: each rank normalises and drops out its part of the sequence.
    selective: the backward pass computes scores, softmax and dropout of the attention again.
    flash: one kernel computes the attention, without dropout, of the tokens before each token; its
    scores are not kept, and computed again in the backward pass.
    accumulated: B of memory traffic with which a microbatch's gradient of one parameter is added to
    those before, in a kernel of its own.
    Source: see SOURCE; flash: Dao et al., "FlashAttention", NeurIPS 2022. Holds for a tied output
    head.
    """
    shape = _Shape(hidden, heads, sequence, batch, sequence_parallel, selective, flash)
    tokens = sequence * batch
    table = 1.0 * vocabulary * hidden  # parameters, on the first stage and on the last

    def added(at: str, parameters: float) -> Iterable[Layer]:
        if accumulated:
            yield shape.inside(f"{at}.accumulate", hidden, 0.0, accumulated * parameters, 0.0)

    blocks = [
        replace(layer, block=f"h.{i}")
        for i in range(layers)
        for layer in (*added(f"h.{i}", 12.0 * hidden**2), *shape.block(f"h.{i}"))
    ]
    first = (*added("embedding", table), embedding_layer(tokens, sequence, hidden, vocabulary))
    last = (*added("head", table), *_head(tokens, hidden, vocabulary))
    every = (*first, *blocks, shape.alone(norm_layer("ln_f", tokens, hidden)), *last)
    crossing = 2.0 * tokens * hidden / scattered
    return Net(name=name, layers=tuple(_chained(every, crossing)), batch=batch, source=SOURCE)


class _Shape:
    """Sizes of a block, and the layers that they make; th, ass: elements of its two tensors."""

    def __init__(
        self,
        hidden: int,
        heads: int,
        sequence: int,
        batch: int,
        spread: bool,
        selective: bool,
        flash: bool,
    ) -> None:
        self.flash = flash
        self.hidden, self.heads, self.sequence = hidden, heads, sequence
        self.tokens, self.spread, self.selective = sequence * batch, spread, selective
        self.th = 1.0 * self.tokens * hidden
        self.ass = 1.0 * heads * sequence * self.tokens

    def block(self, at: str) -> Iterable[Layer]:
        """Yield the kernels of a block in order."""
        t, h, a = self.tokens, self.hidden, self.heads
        yield self.alone(norm_layer(f"{at}.ln_1", t, h))
        kept = 2.0 * self.th
        yield matrix_layer(f"{at}.attn.qkv", t, h, 3 * h, kept=kept, cut="columns", parts=a)
        yield from self._flash(f"{at}.attn") if self.flash else self._attention(f"{at}.attn")
        yield matrix_layer(f"{at}.attn.proj", t, h, h, kept=kept, cut="rows", parts=a, whole=0.0)
        yield self.alone(self._residual(f"{at}.attn.residual"))
        yield self.alone(norm_layer(f"{at}.ln_2", t, h))
        yield matrix_layer(f"{at}.mlp.fc", t, h, 4 * h, kept=kept, cut="columns", parts=4 * h)
        yield self.inside(f"{at}.mlp.gelu", 4 * h, 16 * self.th, 24 * self.th, 8 * self.th)
        kept *= 4
        yield matrix_layer(
            f"{at}.mlp.proj", t, 4 * h, h, kept=kept, cut="rows", parts=4 * h, whole=0.0
        )
        yield self.alone(self._residual(f"{at}.mlp.residual"))

    def _attention(self, at: str) -> Iterable[Layer]:
        """Yield scores, softmax, dropout and the sum of values; selective ones are repeated."""
        flops, width = 2.0 * self.th * self.sequence, self.hidden // self.heads
        traffic = 2.0 * (2 * self.th + self.ass)
        s = self.sequence
        scores, values = (s, width, s), (s, s, width)
        for name, matrix, work, moved, back, kept in (
            ("scores", scores, flops, traffic, 2 * traffic, 4 * self.th),
            ("softmax", (), 0.0, 4 * self.ass, 6 * self.ass, 2 * self.ass),
            ("dropout", (), 0.0, 5 * self.ass, 5 * self.ass, 3 * self.ass),
            ("values", values, flops, traffic, 2 * traffic, 2 * self.th),
        ):
            layer = self.inside(f"{at}.{name}", self.heads, moved, back, kept)
            layer = replace(layer, matrix=matrix, forward_flops=work, backward_flops=2 * work)
            yield self._repeated(layer) if self.selective else layer

    def _flash(self, at: str) -> Iterable[Layer]:
        """Yield the two products of a fused attention, which skips half of the scores."""
        flops, width, s = 1.0 * self.th * self.sequence, self.hidden // self.heads, self.sequence
        moved = 4 * self.th  # queries, keys and values once, and the output
        for name, matrix, again, kept in (
            ("scores", (s, width, s), flops, 4 * self.th),
            ("values", (s, s, width), 0.0, 2 * self.th),
        ):
            layer = self.inside(f"{at}.{name}", self.heads, moved, 2 * moved, kept)
            yield replace(
                layer, matrix=matrix, forward_flops=flops, backward_flops=2 * flops + again
            )

    def _repeated(self, layer: Layer) -> Layer:
        """Return a layer whose backward computes its forward again; scores need not be kept."""
        return replace(
            layer,
            backward_flops=layer.backward_flops + layer.forward_flops,
            backward_bytes=layer.backward_bytes + layer.forward_bytes,
            activation=layer.activation if layer.matrix else 0.0,
        )

    def inside(self, name: str, parts: int, moved: float, back: float, kept: float) -> Layer:
        """Return a kernel bound by memory, whose parts ranks share."""
        return Layer(
            name=name,
            forward_bytes=moved,
            backward_bytes=back,
            activation=kept,
            cut="inside",
            parts=parts,
        )

    def _residual(self, name: str) -> Layer:
        """Return bias, dropout and residual; its backward also adds the gradient of the norm."""
        return Layer(
            name=name,
            forward_bytes=7 * self.th,
            backward_bytes=11 * self.th,
            activation=self.th,
            whole=self.th,
        )

    def alone(self, layer: Layer) -> Layer:
        """Share a layer between pairs of matrices by parts of the sequence, if that is wanted."""
        return replace(layer, cut="inside", whole=0.0) if self.spread else layer


def _head(tokens: int, hidden: int, vocabulary: int) -> Iterable[Layer]:
    """Yield the product with the embedding, and the cross-entropy of its columns in float32."""
    values, flops = 1.0 * tokens * vocabulary, 2.0 * tokens * hidden * vocabulary
    traffic = 2.0 * (vocabulary * hidden + tokens * (hidden + vocabulary))
    yield Layer(
        name="head",
        forward_flops=flops,
        backward_flops=2 * flops,
        matrix=(tokens, hidden, vocabulary),
        forward_bytes=traffic,
        backward_bytes=2 * traffic,
        activation=2.0 * tokens * hidden,
        cut="columns",
        summed=tokens * hidden,
        whole=2.0 * tokens * hidden,
    )
    yield Layer(
        name=FULL,
        forward_bytes=18 * values,  # to float32; its maximum; exponentials
        backward_bytes=10 * values,
        activation=4 * values,
        cut="inside",
    )


def _chained(layers: Iterable[Layer], crossing: float) -> Iterator[Layer]:
    before: tuple[str, ...] = ()
    for layer in layers:
        yield replace(layer, after=before, output=crossing)
        before = (layer.name,)
