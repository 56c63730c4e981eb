"""The largest magnitudes of a run: `topk:SHARE[:WAY][:forget]`, `forget` without feedback."""

from math import isfinite

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.coding import parameters as read
from commsched.coding.codec import State
from commsched.coding.registry import CODECS
from commsched.coding.selection import Selection
from commsched.kernels import select
from commsched.kernels.random import run_key
from commsched.net.bucket import BucketSpec

STEPS = 30  # of the bisection; source: Shi et al., MLSys 2021
RENEW = 32  # steps that a threshold serves; source: Li & Hoefler (Ok-Topk), PPoPP 2022
# A sampled or reused threshold may select fewer or more, up to these; else the exact one counts.
FEWEST, MOST = 0.5, 1.5

# Of each way the memory traffic per byte of values that takes as long in NumPy.
WAYS = {"exact": 25.0, "sampled": 3.0, "bisect": 40.0, "reused": 3.5}
STANDARD = "topk:0.01"


class TopK(Selection):
    """ceil(SHARE n) elements of n, or all non-zeros if fewer; among equal magnitudes the first.

    Ways: `exact` (a partition by rank), `sampled` (a threshold from a sample of the run; the
    expected count is right), `bisect` (MSTopK: a threshold by bisection, filled up in order),
    `reused` (Ok-Topk: the exact threshold of up to 31 steps ago; a new one if it selects too few or
    too many). Good if few large elements carry most of the gradient. Source: Aji & Heafield,
    "Sparse communication for distributed gradient descent", EMNLP 2017.
    """

    def __init__(self, share: float, way: str, forget: bool = False) -> None:
        suffix = f":{way}" if way != "exact" else ""
        named = f"topk:{read.written(share)}{suffix}"
        self.standard = STANDARD + suffix
        self.alike = tuple(f"{STANDARD}:{other}" for other in WAYS if other != "exact")
        super().__init__(named + (f":{read.FORGET}" if forget else ""))
        self._share = share
        self._way = way
        self.feedback = not forget
        self.stateful = way == "reused"
        self.encode_traffic = WAYS[way]

    def select(self, values: Array, state: State, start: int) -> Array:
        count = self._count(len(values))
        if self._way == "exact":
            return select.largest(values, count)
        if self._way == "bisect":
            return select.bisected(values, count, STEPS)
        if self._way == "sampled":
            threshold = select.sampled_threshold(values, self._share, run_key(state, start))
            return self._near(values, select.above(values, threshold), threshold)
        return self._reusing(values, state, start, count)

    def encode_kept(self, values: Array, lost: Array, state: State) -> tuple[Array, bool]:
        if self._way != "sampled":
            return super().encode_kept(values, lost, state)
        # A device adds, compares and looks for NaN in one pass.
        threshold = select.sampled_threshold(values, self._share, run_key(state, 0), lost)
        index, whole = select.added_above(values, lost, threshold)
        return self.written(self._near(values, index, threshold), values, state, 0), whole

    def _near(self, values: Array, index: Array, threshold: float) -> Array:
        """Select the values that reach a threshold; if their count is far off, the exact top-k."""
        count = self._count(len(values))
        if len(index) > MOST * count:
            return select.first_of(values, index, count)
        if len(index) < FEWEST * count and threshold > 0:
            return select.largest(values, count)
        return index

    def _reusing(self, values: Array, state: State, start: int, count: int) -> Array:
        """Select by this run's threshold, renewed every 32 steps and whenever it is far off."""
        key, step = f"topk threshold {start}", int(state.get("step", 0))
        known = key in state and isfinite(state[key][1])
        if not known or step // RENEW != state[key][0]:
            state[key] = step // RENEW, select.threshold_of(values, count)
        threshold = float(state[key][1])
        reached = select.above(values, threshold)
        chosen = self._near(values, reached, threshold)
        if len(chosen) and len(chosen) != len(reached):
            least = float(abs(values.take(chosen)).min())
            state[key] = step // RENEW, least if isfinite(least) else threshold
        return chosen

    def kept(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        count = np.ceil(self._share * np.asarray(stop - start, np.float64))
        return np.minimum(count, spec.nonzeros(start, stop, merged))

    def _count(self, numel: int) -> int:
        return int(np.ceil(self._share * numel))


@CODECS.family(STANDARD)
def topk(parameters: list[str]) -> TopK:
    """Read SHARE, WAY, and whether unsent values are forgotten."""
    parameters, forget = read.forgets(parameters)
    read.at_most(parameters, 2)
    way = read.choice(parameters[1], "the way", tuple(WAYS)) if len(parameters) > 1 else "exact"
    return TopK(read.share(parameters[0]), way, forget)
