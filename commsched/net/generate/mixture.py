"""GPT-style nets whose every other perceptron is a mixture of experts, from closed formulas."""

from dataclasses import replace

from commsched.net.experts import CAPACITY, Experts
from commsched.net.generate.transformer import SOURCE, gpt
from commsched.net.graph import Layer, Net, Tensor

EVERY = 2  # blocks to a mixture; source: Rajbhandari et al., ICML 2022
ROUTER = (
    "; every second perceptron is a mixture of experts of its size, to which a router sends each"
    f" token's first choice; assumptions: capacity {CAPACITY} (Fedus et al., 'Switch Transformers',"
    " JMLR 2022), equal load, float16 tokens, activations and flops of the experts as of the"
    " perceptron"
)


def mixture(name: str, where: str, *, experts: int, **sizes: int) -> Net:
    """Build `transformer.gpt` of these sizes with `experts` experts in every second block, top 1.

        parameters = those of gpt + layers / 2 ((experts - 1) (8 h^2 + 5 h) + experts h)

    h = hidden. Source: sizes from `where`; see SOURCE for the rest.
    """
    dense = gpt(name, **sizes)
    hidden, tokens = sizes["hidden"], sizes["sequence"] * sizes["batch"]
    found: list[Layer] = []
    for layer in dense.layers:
        block = layer.name.rsplit(".mlp.", 1)[0]
        if block == layer.name or int(block.split(".")[1]) % EVERY != EVERY - 1:
            found.append(replace(layer, cut="", parts=0, summed=0, whole=0.0))
        elif layer.name.endswith(".fc"):
            first = layer
        else:
            found += _experts(block, first, layer, hidden, tokens, experts)
    chained = [
        replace(layer, after=(before.name,) if before else ())
        for before, layer in zip([None, *found], found, strict=False)
    ]
    return replace(dense, layers=tuple(chained), source=f"{where}; {SOURCE}{ROUTER}")


def _experts(
    block: str, first: Layer, second: Layer, hidden: int, tokens: int, experts: int
) -> list[Layer]:
    """Return a router, and the experts instead of two matrices."""
    flops = 2.0 * tokens * hidden * experts
    traffic = 2.0 * (hidden * experts + tokens * (hidden + experts))
    both = (first, second)
    weights = sum(t.nbytes for layer in both for t in layer.tensors)  # of one expert
    more = (experts - 1) * weights  # B that one rank with all experts reads in addition
    tensors = (
        replace(t, name=t.name.replace(".mlp.", ".moe."), shape=(experts, *t.shape), axis=0)
        for layer in both
        for t in layer.tensors
    )
    return [
        Layer(
            name=f"{block}.moe.router",
            tensors=(
                Tensor(name=f"{block}.moe.router.weight", shape=(hidden, experts), dtype="float16"),
            ),
            forward_flops=flops,
            backward_flops=2 * flops,
            matrix=(tokens, hidden, experts),
            forward_bytes=traffic,
            backward_bytes=2 * traffic,
            activation=2.0 * tokens * hidden,
            output=4.0 * tokens * hidden,  # tokens, and the residual
            block=block,
        ),
        Layer(
            name=f"{block}.moe",
            tensors=tuple(tensors),
            forward_flops=sum(layer.forward_flops for layer in both),
            backward_flops=sum(layer.backward_flops for layer in both),
            forward_bytes=sum(layer.forward_bytes for layer in both) + more,
            backward_bytes=sum(layer.backward_bytes for layer in both) + 2 * more,
            activation=sum(layer.activation for layer in both),
            output=second.output,
            block=block,
            experts=Experts(count=experts, tokens=tokens, width=hidden),
        ),
    ]


DEEPSPEED = (
    "sizes from Rajbhandari et al., 'DeepSpeed-MoE', ICML 2022 (1.3B+MoE-128: 24 layers of 2048, 16"
    " heads, sequences of 2048, 128 experts, 52 billion parameters); layers, width, heads and"
    " sequences are those of the authors' script (microsoft/Megatron-DeepSpeed,"
    " examples_deepspeed/MoE/ds_pretrain_gpt_1.3B_MoE128.sh, commit 8d90491), whose capacity is"
    " 1.0; that every second perceptron is a mixture gives the 52 billion"
)
SMALL = "sizes of GPT-2 (Radford et al., 2019: 12 layers of 768, 12 heads, sequences of 1024)"


def mixtures() -> tuple[Net, ...]:
    """Make the shipped mixtures of experts."""
    small = mixture(
        "gpt-moe-8",
        f"{SMALL} with 8 experts; not a published net",
        layers=12,
        hidden=768,
        heads=12,
        sequence=1024,
        vocabulary=50257,
        batch=4,
        experts=8,
    )
    large = mixture(
        "deepspeed-moe-52b",
        DEEPSPEED,
        layers=24,
        hidden=2048,
        heads=16,
        sequence=2048,
        vocabulary=50257,
        batch=1,
        experts=128,
    )
    return small, large
