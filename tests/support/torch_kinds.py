"""Kinds of PyTorch models that hooks see differently: a mixture of experts, sparse tables, BERT."""

import torch
from torch import nn

from tests.support.torch_nets import WIDTH, WORDS


class Moe(nn.Module):
    """A gate that sends each row to one of three experts."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Linear(6, 4) for _ in range(3))

    def forward(self, x):
        share, chosen = self.gate(x).softmax(-1).max(-1)
        found = torch.zeros(len(x), 4)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            if len(rows):
                found = found.index_add(0, rows, expert(x[rows]) * share[rows, None])
        return found


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
