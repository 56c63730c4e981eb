"""A mixture of experts: a router sends each token to a few of many perceptrons, on any rank."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import sqrt
from typing import NamedTuple

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.kernels.modules import module_of, on_host
from commsched.kernels.rows import summed_rows
from commsched.net.experts import Experts
from commsched.train.layers.layer import (
    Cut,
    Kept,
    Parameters,
    Start,
    Sums,
    TrainableLayer,
    as_float32,
)


class Route(NamedTuple):
    """The choices of experts that have room, expert by expert: (choices,) each."""

    token: Ints
    expert: Ints
    row: Ints  # index among the expert's tokens
    counts: Ints  # tokens of each expert: (experts,)


def route(chances: Floats, top: int, limit: int) -> Route:
    """Choose the `top` likeliest experts of each token; an expert takes `limit` tokens per sample.

    chances: (samples, length, experts). All first choices come before all second choices.
    Source: Lepikhin et al., "GShard", ICLR 2021, algorithm 1, without its random dispatch.
    """
    samples, length, experts = chances.shape
    chosen = np.argsort(-chances, axis=-1, kind="stable")[..., :top]
    wanted = chosen.swapaxes(1, 2).reshape(samples, top * length)
    earlier = np.cumsum(wanted[..., None] == np.arange(experts), axis=1)
    place = np.take_along_axis(earlier, wanted[..., None], axis=2)[..., 0] - 1
    sample, at = np.nonzero(place < limit)
    expert = wanted[sample, at]
    order = np.argsort(expert, kind="stable")
    counts = np.bincount(expert, minlength=experts)
    row = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    return Route((sample * length + at % length)[order], expert[order], row, counts)


class Arrived:
    """The tokens received by a rank's experts: from each rank, for each expert, in its slots."""

    def __init__(self, table: Array, experts: int, width: int) -> None:
        rows = table.reshape(-1, experts, table.shape[-1])
        self._heads = rows[:, :, :1]
        self._slots = rows[:, :, 1:].reshape(len(rows), experts, -1, width)
        counts = on_host(rows[:, :, 0]).astype(np.int64)
        self._there = np.arange(self._slots.shape[2]) < counts[..., None]

    def tokens(self) -> Iterator[Array]:
        """Yield the tokens of each expert, (tokens, width), rank by rank."""
        for expert in range(self._slots.shape[1]):
            source, slot = np.nonzero(self._there[:, expert])
            yield self._slots[source, expert, slot]

    def answer(self, found: Sequence[Array]) -> Array:
        """Return a table that brings each token's row of `found` back to its rank."""
        module = module_of(self._slots)
        slots = module.zeros_like(self._slots)
        for expert, rows in enumerate(found):
            source, slot = np.nonzero(self._there[:, expert])
            slots[source, expert, slot] = rows
        flat = slots.reshape(*slots.shape[:2], -1)
        return module.concatenate([self._heads, flat], axis=2).reshape(-1, 1 + flat.shape[2])


class Mixture(TrainableLayer):
    """Perceptrons of one hidden ReLU layer: (m, length, width), in and out.

    Outputs are the answers of a token's experts, weighted by the router's probabilities; a token
    that no expert takes gets 0. In each sample an expert takes ceil(capacity x top x length /
    experts) tokens, so that the dropped tokens do not depend on how ranks share a batch. Ranks may
    hold equal runs of the experts: each yields a table of its tokens by expert, and receives the
    table of its experts' tokens by rank.
    Source: Fedus et al., "Switch Transformers", JMLR 23(120), 2022, equations 1 to 3, without
    the loss that balances load; several experts of a token: Lepikhin et al., "GShard", ICLR 2021
    (there a token's weights sum to 1, here they are the probabilities).
    """

    def __init__(
        self,
        name: str,
        width: int,
        inner: int,
        experts: int,
        top: int,
        capacity: float,
        gain: float = 1.0,
    ) -> None:
        cut = Cut(axis=0, parts=experts, experts=True)
        super().__init__(
            name,
            router=Start((width, experts), 1 / sqrt(width)),
            up=Start((experts, width, inner), sqrt(2 / width), cut=cut),
            above=Start((experts, inner), cut=cut),
            down=Start((experts, inner, width), gain / sqrt(inner), cut=cut),
            below=Start((experts, width), cut=cut),
        )
        self._names = tuple(self.tensors)
        self._width, self._experts, self._top = width, experts, top
        self._of_a_token = Experts(count=experts, tokens=1, width=width, top=top, capacity=capacity)

    def forward_sums(self, parameters: Parameters, inputs: Array) -> Sums:
        router, *perceptron = (as_float32(parameters[name]) for name in self._names)
        samples, length, width = inputs.shape
        x = as_float32(inputs).reshape(-1, width)
        scores = x @ router
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        host = on_host(chances).reshape(samples, length, -1)
        found = route(host, self._top, self._slots(1, length))
        arrived = Arrived(
            (yield self._table(found, x[found.token], self._slots(samples, length))),
            len(perceptron[0]),
            width,
        )
        answers, hidden = [], []
        for tokens, up, above, down, below in zip(arrived.tokens(), *perceptron, strict=True):
            inner = np.maximum(tokens @ up + above, 0)
            answers.append(inner @ down + below)
            hidden.append((tokens, inner))
        came = self._rows(found, (yield arrived.answer(answers)))
        gates = chances[found.token, found.expert]
        outputs = summed_rows(len(x), module_of(x).asarray(found.token), gates[:, None] * came)
        kept = x, chances, found, samples, came, hidden
        return outputs.reshape(inputs.shape).astype(inputs.dtype), kept

    def backward_sums(self, parameters: Parameters, kept: Kept, above: Array) -> Sums:
        router, up, _, down, _ = (as_float32(parameters[name]) for name in self._names)
        x, chances, found, samples, came, hidden = kept
        module = module_of(x)
        wanted = as_float32(above).reshape(x.shape)[found.token]
        gates = chances[found.token, found.expert]
        slots = self._slots(samples, len(x) // samples)
        arrived = Arrived(
            (yield self._table(found, gates[:, None] * wanted, slots)), len(up), self._width
        )
        below, gradients = [], []
        rows = zip(arrived.tokens(), hidden, up, down, strict=True)
        for outer, (tokens, inner), first, second in rows:
            bent = (outer @ second.T) * (inner > 0)
            below.append(bent @ first.T)
            gradients.append(
                (tokens.T @ bent, bent.sum(axis=0), inner.T @ outer, outer.sum(axis=0))
            )
        back = self._rows(found, (yield arrived.answer(below)))
        pulled = module.zeros_like(chances)
        pulled[found.token, found.expert] = (wanted * came).sum(axis=1)
        pulled = chances * (pulled - (pulled * chances).sum(axis=1, keepdims=True))
        inputs = summed_rows(len(x), module.asarray(found.token), back) + pulled @ router.T
        stacked = [module.stack(list(some)) for some in zip(*gradients, strict=True)]
        whole = dict(zip(self._names, (x.T @ pulled, *stacked), strict=True))
        return inputs.reshape(above.shape).astype(above.dtype), {
            name: values.astype(above.dtype) for name, values in whole.items()
        }

    def _slots(self, samples: int, length: int) -> int:
        """Return the most tokens of some samples that an expert takes."""
        return replace(self._of_a_token, tokens=samples * length, groups=samples).slots

    def routed(self, kept: Kept) -> Experts:
        x, _, found, samples, *_ = kept
        load = tuple((found.counts / (self._top * len(x))).tolist())
        return replace(self._of_a_token, tokens=len(x), groups=samples, load=load)

    def _table(self, found: Route, values: Array, slots: int) -> Array:
        """Return each expert's count and slots: (experts, 1 + slots x width)."""
        module = module_of(values)
        rows = module.zeros((self._experts, slots, self._width), values.dtype)
        rows[found.expert, found.row] = values
        heads = module.asarray(found.counts.astype(values.dtype)).reshape(-1, 1)
        return module.concatenate([heads, rows.reshape(self._experts, -1)], axis=1)

    def _rows(self, found: Route, table: Array) -> Array:
        """Return the answer for each choice: (choices, width)."""
        slots = table.reshape(self._experts, -1)[:, 1:].reshape(self._experts, -1, self._width)
        return slots[found.expert, found.row]
