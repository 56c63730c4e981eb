"""Small PyTorch models with data and a loss, and a plan for each, to test commsched.torch."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from commsched.net.graph import Layer, Net, Tensor
from commsched.plan.model import Plan
from tests.support.small_plans import machine
from tests.support.small_plans import plan as small_plan

WORDS, WIDTH = 40, 16


class Cnn(nn.Module):
    """Two convolutions with BatchNorm."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
            *(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class Block(nn.Module):
    """Attention and a feed-forward net, each added to its input."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.one(x)).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.two(x))))


class Gpt(nn.Module):
    """Two blocks; the embedding is also the last matrix."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(8, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words):
        return self.head(self.blocks(self.words(words) + self.places.weight))


class Lstm(nn.Module):
    """An embedding, an LSTM of two layers, a softmax."""

    def __init__(self):
        super().__init__()
        self.words, self.lstm = nn.Embedding(WORDS, WIDTH), nn.LSTM(WIDTH, WIDTH, 2)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words):
        return self.head(self.lstm(self.words(words))[0])


class Fork(nn.Module):
    """Even ranks use the left arm, odd ones the right arm; nobody uses the third one."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.third = (nn.Linear(6, 6) for _ in range(3))
        self.head, self.odd = nn.Linear(6, 4), False

    def forward(self, x):
        return self.head((self.right if self.odd else self.left)(x))


class Checkpointed(nn.Module):
    """An MLP whose halves are computed again in backward."""

    def __init__(self, reentrant=False):
        super().__init__()
        self.first, self.last = mlp(), nn.Linear(4, 4)
        self.reentrant = reentrant

    def forward(self, x):
        inner = checkpoint(self.first, x.requires_grad_(), use_reentrant=self.reentrant)
        return checkpoint(self.last, inner, use_reentrant=self.reentrant)


class Tables(nn.Module):
    """Two embeddings; only the longer sentences use the second one."""

    def __init__(self, sparse=False):
        super().__init__()
        self.words = nn.Embedding(WORDS, 6, sparse=sparse)
        self.tails = nn.Embedding(WORDS, 6, sparse=sparse)
        self.head = nn.Linear(6, WORDS)

    def forward(self, words):
        found = self.words(words)
        return self.head(
            found + self.tails(words).sum(1, keepdim=True) if words.shape[1] > 8 else found
        )


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


MODELS = {
    "mlp": mlp,
    "cnn": Cnn,
    "gpt": Gpt,
    "lstm": Lstm,
    "fork": Fork,
    "again": Checkpointed,
    "tables": Tables,
}


def make(kind, seed=0):
    """A model with parameters of its own seed."""
    torch.manual_seed(seed)
    return MODELS[kind]()


def batch(kind, step, rank):
    """Inputs and targets of a rank in a step, on the device on which models are made."""
    draw, where = torch.Generator().manual_seed(1000 * step + rank), torch.get_default_device()
    with torch.device("cpu"):
        if kind in ("gpt", "lstm"):
            words = torch.randint(WORDS, (5, 9), generator=draw)
            return words[:, :-1].to(where), words[:, 1:].to(where)
        shape = (5, 3, 9, 9) if kind == "cnn" else (5, 6)
        inputs = torch.randn(shape, generator=draw)
        return inputs.to(where), torch.randint(4, (5,), generator=draw).to(where)


def loss_of(model, inputs, targets):
    return functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


def net_of(model):
    """A layer for each parameter, in the order of the model."""
    layers, before = [], ()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            tensor = Tensor(name=name, shape=tuple(parameter.shape) or (1,))
            layers.append(
                Layer(name=name, after=before, forward=1e-4, backward=1e-4, tensors=(tensor,))
            )
            before = (name,)
    return Net(name="model", layers=tuple(layers))


def plan_of(model, ranks, methods=("ring+dense",), bucket=1000.0) -> Plan:
    """Buckets of at most 1 kB."""
    return small_plan(net_of(model), machine(1, ranks), list(methods), bucket)
