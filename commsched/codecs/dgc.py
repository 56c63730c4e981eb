"""Deep gradient compression: `dgc:SHARE[:STEPS[:MOMENTUM]]`, top-k with momentum correction."""

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.coding import parameters as read
from commsched.coding.codec import Codec, State
from commsched.coding.registry import CODECS
from commsched.coding.selection import Selection
from commsched.errors import CommschedError
from commsched.kernels import select
from commsched.kernels.finite_check import finite
from commsched.kernels.random import run_key
from commsched.net.bucket import BucketSpec

# Kept in the first, second, ... stage of the warm-up: 75, 93.75, 98.4, 99.6 % are dropped.
WARM_UP = (0.25, 0.0625, 0.016, 0.004)
MOST = 1.5  # times the share: if more are selected, the largest of them are taken, as in the paper


class Dgc(Selection):
    """Momentum and velocity are kept per element until it is sent, and then cleared.

    Replaces the optimiser's momentum: use it with plain SGD. STEPS is the length of a stage of the
    warm-up, 0 for none; bytes are predicted for the time after it, and for a single step by
    `at`. With momentum 0 it is top-k by a sampled threshold with error feedback.
    Source: Lin et al., "Deep gradient compression", ICLR 2018.
    """

    standard = "dgc:0.001"
    stateful = True
    memory = 8.0
    feedback = False
    no_feedback = "its velocity keeps what is not sent, as feedback would"
    encode_traffic = 14.0  # update momentum and velocity, then as a sampled top-k

    def __init__(self, share: float, stage: int, momentum: float) -> None:
        parts = [read.written(share), str(stage), read.written(momentum)]
        while len(parts) > 1 and parts[-1] == (None, "0", "0.9")[len(parts) - 1]:
            parts.pop()
        super().__init__(":".join(["dgc", *parts]))
        self._share = share
        self._stage = stage
        self._momentum = momentum

    def share(self, step: int) -> float:
        """Return the share that is sent in a step."""
        stage = step // self._stage if self._stage else len(WARM_UP)
        return max(self._share, WARM_UP[stage]) if stage < len(WARM_UP) else self._share

    def at(self, step: int) -> Codec:
        share = self.share(step)
        if share == self._share:
            return self
        plain = Dgc(share, 0, self._momentum).plain
        return CODECS[plain + self.name.removeprefix(self.plain)]

    def encode(self, values: Array, state: State, start: int = 0) -> Array:
        momentum, velocity = self._kept_of(values, state, start)
        if not finite(values):
            return super().encode(values, state, start)
        with np.errstate(over="ignore", invalid="ignore"):
            momentum *= np.float32(self._momentum)
            momentum += values
            velocity += momentum
        packet = super().encode(velocity, state, start)
        if not finite(velocity):  # all ranks hear of it once; what comes later starts anew
            momentum.fill(0)
            velocity.fill(0)
            return packet
        self.subtract(packet, velocity)
        index, _ = self.open(packet, len(values))
        momentum[index] = 0
        return packet

    def _kept_of(self, values: Array, state: State, start: int) -> tuple[Array, Array]:
        """Return momentum and velocity of this run, (n,) float32 each, zeros at first."""
        key = f"dgc {start}"
        if key not in state:
            state[key] = np.zeros_like(values), np.zeros_like(values)
        kept: tuple[Array, Array] = state[key]
        return kept

    def select(self, values: Array, state: State, start: int) -> Array:
        share = self.share(int(state.get("step", 0)))
        count = int(np.ceil(share * len(values)))
        threshold = select.sampled_threshold(values, share, run_key(state, start))
        index = select.above(values, threshold)
        return select.first_of(values, index, count) if len(index) > MOST * count else index

    def kept(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        count = np.ceil(self._share * np.asarray(stop - start, np.float64))
        return np.minimum(count, spec.nonzeros(start, stop, merged))


@CODECS.family(Dgc.standard)
def dgc(parameters: list[str]) -> Dgc:
    """Read SHARE, STEPS and MOMENTUM."""
    read.at_most(parameters, 3)
    share, stage, momentum = (*parameters, *("", "0", "0.9")[len(parameters) :])
    factor = read.number(momentum, "the momentum", "in [0, 1)")
    if factor >= 1:
        raise CommschedError(f"the momentum must be in [0, 1), got {momentum!r}")
    steps = read.whole(stage, "the steps of a stage of the warm-up", 0, 10**8)
    return Dgc(read.share(share), steps, factor)
