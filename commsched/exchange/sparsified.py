"""A selection before a sparse sum, `zen+topk:0.05`; the values that it leaves out are kept."""

from dataclasses import replace

import numpy as np

from commsched.arrays import Array
from commsched.coding.codec import State
from commsched.coding.registry import CODECS
from commsched.coding.selection import Selection
from commsched.errors import CommschedError
from commsched.exchange.method import Choice, Method, Phase
from commsched.exchange.pair import encode_with_feedback
from commsched.machine.model import Device, Group
from commsched.net.bucket import BucketSpec
from commsched.net.sparsity import Sparsity


def stands_first(codec: str) -> bool:
    """Tell whether a codec may stand before a sparse sum: a selection that sends plain values."""
    found = CODECS[codec]
    return isinstance(found, Selection) and found.composes and found.name == found.plain


class Sparsified(Method):
    """Select values of each rank's gradient, then sum the selections by a lossless sparse method.

    A selection in an all-gather sends every rank's values to all; a sparse sum sends them once, and
    their union once. Good for many ranks or overlapping selections. Each rank keeps what its own
    selection leaves out; the sum loses nothing.
    Source: Wang et al., "Zen", OSDI 2025, which puts DGC's selection of 5 % in front of its sums.
    """

    lossless = False
    codec: Selection

    def __init__(self, method: Method, codec: str) -> None:
        chosen = CODECS[codec]
        self.name = f"{method.name}+{chosen.name}"
        if not method.sparse:
            raise CommschedError(
                f"{self.name!r}: {method.name!r} is no sparse sum, which alone may follow a codec"
            )
        if not stands_first(codec):
            raise CommschedError(
                f"{self.name!r}: only a codec that selects values, such as topk:0.05 or dgc, may"
                " stand before a sparse sum"
            )
        assert isinstance(chosen, Selection)
        self.codec, self._sum = chosen, method

    @property
    def family(self) -> str:
        return self._sum.name

    def at(self, step: int) -> Method:
        codec = self.codec.at(step)
        return self if codec is self.codec else Sparsified(self._sum, codec.name)

    def phases(self, spec: BucketSpec, group: Group) -> tuple[Phase | Choice, ...]:
        first, *others = self._sum.phases(self.selected(spec), group)
        if isinstance(first, Choice):
            return (self._before_vote(first, spec), *others)
        take, seconds = first.take, first.take_seconds

        def select_and_take(state: State) -> Array:
            self._select(state)
            return take(state)

        def take_seconds(device: Device) -> float:
            return self._seconds(spec, device) + seconds(device)

        return (replace(first, take=select_and_take, take_seconds=take_seconds), *others)

    def kept(self, spec: BucketSpec) -> float:
        return super().kept(spec) + self._sum.kept(spec)

    def selected(self, spec: BucketSpec) -> BucketSpec:
        """Return the bucket with the law of the selected values: evenly spread unless all are."""
        whole = np.zeros(1, np.int64), np.array([spec.numel]), 1
        share = float(self.codec.kept(spec, *whole)[0]) / max(1.0, float(spec.nonzeros(*whole)[0]))
        if share >= 1.0:
            return spec
        return BucketSpec(
            tuple((_thinned(law, share), *where) for law, *where in spec.pieces)  # type: ignore[misc]
        )

    def _before_vote(self, choice: Choice, spec: BucketSpec) -> Choice:
        vote, then = choice.vote, choice.then

        def select_and_vote(state: State) -> float:
            self._select(state)
            return vote(state)

        def chosen(number: float) -> Phase:
            phase = then(number)
            seconds = phase.take_seconds
            return replace(
                phase, take_seconds=lambda device: self._seconds(spec, device) + seconds(device)
            )

        return replace(choice, vote=select_and_vote, then=chosen)

    def _select(self, state: State) -> None:
        """Overwrite the gradient with the values selected from it and the kept values."""
        codec = self.codec
        if codec.feedback:
            packet = encode_with_feedback(codec, state)
        else:
            packet = codec.encode(state["gradient"], state)
        codec.decode(packet, state["gradient"])

    def _seconds(self, spec: BucketSpec, device: Device) -> float:
        raw, rate = 4.0 * spec.numel, self.codec.rate(device).at(spec.density)
        encode = rate.encode + self.codec.feedback_rate(device)
        return rate.fixed + raw * encode + rate.per_decode + raw * rate.decode


def _thinned(law: Sparsity, share: float) -> Sparsity:
    """Return the law of an evenly drawn share of a tensor's non-zeros."""
    return Sparsity(law="uniform", density=law.density * share)
