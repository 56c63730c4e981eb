"""Kinds of PyTorch models that hooks see differently: a mixture of experts, sparse tables, BERT."""

import torch
from torch import nn

from tests.support.torch_nets import WIDTH, WORDS


class Moe(nn.Module):
    """A gate that sends each row to one of some experts."""

    def __init__(self, count=3):
        super().__init__()
        self.gate = nn.Linear(6, count)
        self.experts = nn.ModuleList(nn.Linear(6, 4) for _ in range(count))

    def forward(self, x):
        share, chosen = self.gate(x).softmax(-1).max(-1)
        found = torch.zeros(len(x), 4)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            if len(rows):
                found = found.index_add(0, rows, expert(x[rows]) * share[rows, None])
        return found


class Experts(nn.Module):
    """Four experts in one parameter per matrix, called with what each row has chosen."""

    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.randn(4, 10, 6) / 3)
        self.down = nn.Parameter(torch.randn(4, 6, 10) / 3)

    def forward(self, x, shares, chosen):
        found = torch.zeros_like(x)
        for number in range(len(self.up)):
            rows, place = (chosen == number).nonzero(as_tuple=True)
            inner = (x[rows] @ self.up[number].T).relu()
            found = found.index_add(
                0, rows, inner @ self.down[number].T * shares[rows, place, None]
            )
        return found


class FusedMoe(nn.Module):
    """A gate that sends each row to two of four experts."""

    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 4, bias=False), Experts()

    def forward(self, x):
        shares, chosen = self.gate(x).softmax(-1).topk(2)
        return self.experts(x, shares, chosen)


class Dlrm(nn.Module):
    """Two tables with sparse gradients beside a dense arm."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(1000, 4, mode="sum", sparse=True) for _ in range(2)
        )
        self.bottom, self.top = nn.Linear(6, 4), nn.Linear(12, 1)

    def forward(self, x, ids):
        looked = [table(ids) for table in self.tables]
        return self.top(torch.cat([self.bottom(x), *looked], 1))


class Bert(nn.Module):
    """A bidirectional encoder of PyTorch's own layers, with a mask."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.pooled = nn.Linear(WIDTH, 2)

    def forward(self, words):
        mask = words == 0
        return self.pooled(self.encoder(self.words(words), src_key_padding_mask=mask)[:, 0])
