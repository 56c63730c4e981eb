"""The trained models: two with dense gradients, two with embeddings.

`resnet18` on drawn images, a `gpt` and an `lstm` on the text of Python's manual, and a `dlrm` on
drawn clicks. `commsched capture commsched/lab/peers/models.py:gpt` measures one.
"""

from collections.abc import Callable
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional

SIZE, CLASSES = 64, 10  # pixels per side of an image; classes
NOISE = 6.0  # of a pixel, per amplitude of the stripes under it
LETTERS, WIDTH, LAYERS, HEADS, CONTEXT = 128, 320, 8, 5, 64  # of the GPT: 9.9 million parameters
WORDS, HIDDEN, WINDOW = 10_000, 200, 35  # of the LSTM: 4.7 million parameters
TABLES, ROWS, COLUMNS, NUMBERS = 8, 50_000, 32, 13  # of the DLRM: 12.8 million parameters
BATCHES, HELD_OUT = 64, 16  # batches of a rank; held-out batches of all ranks together

Loss = Callable[[Any, Any], Any]  # (model, batch) -> scalar


class PeerTraining(NamedTuple):
    """A contender's model, optimizer and batches; all contenders have equal copies."""

    model: Any
    loss: Loss
    optimizer: Any
    batches: list[Any]  # of this rank
    held_out: list[Any]


class ResidualBlock(nn.Module):  # type: ignore[misc]
    """Two convolutions added to their input (He et al., CVPR 2016)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
        changes = stride != 1 or before != after
        self.short = nn.Conv2d(before, after, 1, stride, bias=False) if changes else nn.Identity()

    def forward(self, x: Any) -> Any:
        inner = functional.relu(self.norms[0](self.one(x)))
        return functional.relu(self.norms[1](self.two(inner)) + self.short(x))


class GptBlock(nn.Module):  # type: ignore[misc]
    """A layer of a GPT, norms first."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        up, down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.mlp = nn.Sequential(up, nn.GELU(), down)

    def forward(self, x: Any) -> Any:
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class Gpt(nn.Module):  # type: ignore[misc]
    """A GPT that predicts the next letter from letters."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(GptBlock() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, LETTERS)

    def forward(self, letters: Any) -> Any:
        return self.head(self.blocks(self.letters(letters) + self.places.weight))


class Lstm(nn.Module):  # type: ignore[misc]
    """A net that predicts the next word: an embedding, two layers of LSTM, and a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN)
        self.lstm = nn.LSTM(HIDDEN, HIDDEN, num_layers=2, batch_first=True)
        self.decoder = nn.Linear(HIDDEN, WORDS)

    def forward(self, words: Any) -> Any:
        return self.decoder(self.lstm(self.words(words))[0])


class Dlrm(nn.Module):  # type: ignore[misc]
    """A DLRM: a small net for numbers, embeddings for categories (Naumov et al., 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(ROWS, COLUMNS, mode="sum", sparse=True) for _ in range(TABLES)
        )
        self.bottom = nn.Sequential(nn.Linear(NUMBERS, 64), nn.ReLU(), nn.Linear(64, COLUMNS))
        inputs = COLUMNS + (TABLES + 1) * TABLES // 2
        self.top = nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, numbers: Any, categories: Any) -> Any:
        dense = self.bottom(numbers)
        pairs = zip(self.tables, categories.T, strict=True)
        every = torch.stack([dense, *(table(some[:, None]) for table, some in pairs)], dim=1)
        above = torch.triu_indices(TABLES + 1, TABLES + 1, offset=1)
        products = (every @ every.mT)[:, above[0], above[1]]
        return self.top(torch.cat([dense, products], dim=1)).squeeze(1)


def _resnet18() -> tuple[Any, Loss, Any]:
    blocks = [
        ResidualBlock(before, after, stride)
        for before, after, stride in zip(
            (64, 64, 64, 128, 128, 256, 256, 512),
            (64, 64, 128, 128, 256, 256, 512, 512),
            (1, 1, 2, 1, 2, 1, 2, 1),
            strict=True,
        )
    ]
    model = nn.Sequential(
        *(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.MaxPool2d(3, 2, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(512, CLASSES),
    )
    return model, _classes, torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)


def _classes(model: Any, batch: Any) -> Any:
    return functional.cross_entropy(model(batch[0]), batch[1])


def _images(random: Any) -> Any:
    """Draw 8 noisy images of stripes; the class is the width of the stripes."""
    labels = torch.randint(CLASSES, (8,), generator=random)
    stripes = torch.sin(torch.arange(SIZE) * (0.2 + 0.15 * labels.view(-1, 1, 1, 1)))
    return stripes + NOISE * torch.randn(8, 3, SIZE, SIZE, generator=random), labels


def _gpt() -> tuple[Any, Loss, Any]:
    model = Gpt()
    return model, _next, torch.optim.AdamW(model.parameters(), lr=1e-3)


def _next(model: Any, batch: Any) -> Any:
    return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def _letters(random: Any) -> Any:
    text = "".join(topics.values()).encode("ascii", "replace")
    return _windows(torch.frombuffer(bytearray(text), dtype=torch.uint8), 4, CONTEXT, random)


def _lstm() -> tuple[Any, Loss, Any]:
    model = Lstm()
    return model, _next, torch.optim.SGD(model.parameters(), lr=2.0)


def _words(random: Any) -> Any:
    words = " ".join(topics.values()).split()
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    return _windows(torch.tensor([numbers[word] % WORDS for word in words]), 8, WINDOW, random)


def _windows(text: Any, count: int, length: int, random: Any) -> Any:
    """Cut `count` windows of length + 1 out of a text, (n,), at random places."""
    begins = torch.randint(len(text) - length - 1, (count, 1), generator=random)
    return text[begins + torch.arange(length + 1)].long()


def _dlrm() -> tuple[Any, Loss, Any]:
    torch.sparse.check_sparse_tensor_invariants.disable()  # Adagrad's sparse tensors are valid
    model = Dlrm()
    return model, _clicks, torch.optim.Adagrad(model.parameters(), lr=0.02)


def _clicks(model: Any, batch: Any) -> Any:
    return functional.binary_cross_entropy_with_logits(model(*batch[:2]), batch[2])


def _visits(random: Any) -> Any:
    """Draw 128 visits: numbers, categories by Zipf's law, and clicks that depend on both."""
    numbers = torch.randn(128, NUMBERS, generator=random)
    categories = (ROWS ** torch.rand(128, TABLES, generator=random)).long() - 1
    popular = (categories < 20).sum(1) - TABLES / 3
    return numbers, categories, (numbers[:, :4].sum(1) + popular > 0).float()


MODELS = {
    "resnet18": (_resnet18, _images),
    "gpt": (_gpt, _letters),
    "lstm": (_lstm, _words),
    "dlrm": (_dlrm, _visits),
}


def training(name: str, rank: int, ranks: int, seed: int = 0) -> PeerTraining:
    """Make a model, its optimizer and this rank's batches: equal seeds give equal numbers."""
    make, draw = MODELS[name]
    torch.manual_seed(seed)
    model, loss, optimizer = make()

    def batch(number: int) -> Any:
        return draw(torch.Generator().manual_seed(1_000_000 * seed + number))

    batches = [batch(HELD_OUT + rank + k * ranks) for k in range(BATCHES)]
    return PeerTraining(model, loss, optimizer, batches, [batch(k) for k in range(HELD_OUT)])


def _build(name: str) -> tuple[Any, Callable[[Any], Any], Any, list[Any]]:
    """Return the tuple that `commsched capture` expects from a builder."""
    comm = MPI.COMM_WORLD
    made = training(name, comm.rank, comm.size)
    return made.model, lambda batch: made.loss(made.model, batch), made.optimizer, made.batches


def resnet18() -> Any:
    """Build a ResNet-18 for `capture`."""
    return _build("resnet18")


def gpt() -> Any:
    """Build a GPT for `capture`."""
    return _build("gpt")


def lstm() -> Any:
    """Build an LSTM for `capture`."""
    return _build("lstm")


def dlrm() -> Any:
    """Build a DLRM for `capture`."""
    return _build("dlrm")
