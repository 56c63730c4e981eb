"""The error of a lossy method: the part of a gradient that a step leaves behind, with feedback.

    e = sqrt(sum over ranks of |left|^2) / sqrt(sum over ranks of |wanted|^2)

wanted = a rank's gradient plus what it kept of earlier gradients; left = what it keeps after the
exchange, including its losses at merges. A run and a planner add up the same squares.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from commsched.arrays import Array, Floats
from commsched.coding.codec import State
from commsched.exchange.lockstep import fresh_states, run_method
from commsched.exchange.method import Choice, Method, Phase
from commsched.exchange.registry import find_method
from commsched.kernels.random import generator
from commsched.machine.model import Group
from commsched.net.bucket import BucketSpec
from commsched.net.decay import magnitudes
from commsched.net.sparsity import Sparsity
from commsched.schedule.rounds import Goal

SAMPLE = 2**15  # elements on which a method is tried
STEPS = 8  # the largest error among these steps counts
SMALL = 2**14  # elements of a tensor that stays dense
VECTOR = 2**18  # elements of a tensor of one dimension, such as a bias or a norm, that stays dense
RANKS = Group(ranks=(0, 1, 2, 3), nodes=(0, 0, 1, 1))


def is_small(shape: Sequence[int]) -> bool:
    """Tell whether a tensor is a bias, a norm or small: compressing it gains too little."""
    numel = int(np.prod(shape))
    return numel < SMALL or (len(shape) == 1 and numel < VECTOR)


def squares(values: Array, runs: Sequence[slice]) -> Floats:
    """Return the squared norm of each run of (n,) float32: (runs,)."""
    return np.array([float(np.dot(values[run], values[run])) for run in runs])


def before(
    method: Method, phase: Phase | Choice, state: State, runs: Sequence[slice]
) -> tuple[Floats, Floats | None]:
    """Return the squares of each run's wanted values, and of its losses if already known.

    Call it when the gradient is in the state, before the method's first phase.
    """
    gradient = state["gradient"]
    if method.keeps:
        if "lost" not in state:
            return squares(gradient, runs), None
        lost = state["lost"]
        return np.concatenate([squares(gradient[r] + lost[r], [slice(None)]) for r in runs]), None
    assert method.codec is not None
    assert isinstance(phase, Phase)
    if phase.schedule.goal is Goal.ALL_REDUCE:
        state["lost"] = np.zeros_like(gradient)  # the exchange stores what it drops
        return squares(gradient, runs), None
    left = gradient.copy()
    method.codec.subtract(method.codec.encode(gradient.copy(), dict(state)), left)
    return squares(gradient, runs), squares(left, runs)


def after(state: State, runs: Sequence[slice]) -> Floats:
    """Return the squares of each run's losses, once the last phase is over."""
    return squares(state["lost"], runs) if "lost" in state else np.zeros(len(runs))


def error(method: Method, law: Sparsity, numel: int, decay: float = 0.0) -> float:
    """Return the largest error in a few steps with gradients drawn by a tensor's law.

    Values with the decay of the tensor's gradients, normal ones if it is 0, on four ranks.
    Infinity if the method's loss cannot be measured.
    """
    if method.lossless:
        return 0.0
    if not method.measurable:
        return float("inf")
    return _error(told_by(method), law, min(numel.bit_length(), SAMPLE.bit_length()), decay)


def told_by(method: Method) -> str:
    """Name the method with an equal error: a pair's error depends on its codec only."""
    if method.codec is None:
        return method.name
    return ("ring+" if method.codec.addable else "all-gather+") + method.codec.name


@lru_cache(maxsize=4096)
def _error(name: str, law: Sparsity, size: int, decay: float) -> float:
    """Return `error`, cached; `size` is numel.bit_length()."""
    numel = 2 ** (size - 1)
    of, ranks = _of(law, numel), range(RANKS.size)
    steps = ([_drawn(of, numel, step, rank, decay) for rank in ranks] for step in range(STEPS))
    return tried(name, law, steps)


def tried(name: str, law: Sparsity, steps: Iterable[Sequence[Array]]) -> float:
    """Return the largest error of a method over steps, each with a gradient for each of RANKS.

    Gradients are (numel,) float32 with supports by `law`.
    """
    method = find_method(name)
    states: list[State] = []
    worst = 0.0
    for step, gradients in enumerate(steps):
        numel = len(gradients[0])
        spec = BucketSpec(((_of(law, numel), numel, 0, numel),))
        whole = [slice(0, numel)]
        states = states or fresh_states([np.zeros_like(each) for each in gradients], name="error")
        wanted = left = 0.0
        for gradient, state in zip(gradients, states, strict=True):
            state["step"] = step
            state["gradient"][:] = gradient
            squared, known = before(method, method.phases(spec, RANKS)[0], state, whole)
            wanted += float(squared[0])
            left += 0.0 if known is None else float(known[0])
        run_method(method, spec, RANKS, states)
        left += sum(float(after(state, whole)[0]) for state in states)
        worst = max(worst, (left / wanted) ** 0.5 if wanted else 0.0)
    return worst


def _of(law: Sparsity, numel: int) -> Sparsity:
    """Fit a law to `numel` elements of its tensor, which may be fewer than its rows."""
    return BucketSpec.uniform(numel, law.density).pieces[0][0] if law.rows > numel else law


def _drawn(law: Sparsity, numel: int, step: int, rank: int, decay: float = 0.0) -> Array:
    """Draw a rank's gradient of a step: values on a support by the law; masks are static."""
    random = generator(0, step, rank, "error/values")
    values = random.standard_normal(numel, np.float32)
    if decay:
        values = np.copysign(random.permutation(magnitudes(numel, decay)), values)
        values = values.astype(np.float32)
    if law.law == "dense":
        return values
    fixed = law.law == "mask"
    rng = generator(0, 0 if fixed else step, 0 if fixed else rank, "error/support")
    out = np.zeros(numel, np.float32)
    support = law.support(numel, rng)
    out[support] = values[support]
    return out
