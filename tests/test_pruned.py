"""SAMO's step on packed arrays against masked dense mixed precision with Adam, bit for bit."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsched.errors import CommschedError
from commsched.kernels.finite_check import finite
from commsched.kernels.pruned import (
    AdamConstants,
    adam,
    kept_of,
    largest,
    pack,
    prune,
    random_mask,
    update,
    whole,
)
from commsched.strategies.samo import state_memory
from commsched.train.optimizers import LossScale
from tests.support import sampling
from tests.support.gradients import bits

EXCHANGED = 6  # B for each value: its sum in float32, and a half on the wire


def nbytes(state):
    """Bytes of all arrays."""
    arrays = (getattr(state, field.name) for field in fields(state))
    return sum(array.nbytes for array in arrays if not isinstance(array, slice))


def rank_order_sum(parts):
    """Halves added in rank order."""
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


class Dense:
    """Every element is kept; what is masked is set to zero after every step."""

    def __init__(self, values, index):
        self.mask = np.zeros(len(values), bool)
        self.mask[index] = True
        self.values = np.where(self.mask, values, np.float32(0))
        self.mean, self.square = np.zeros_like(values), np.zeros_like(values)
        self.steps = 0

    @property
    def half(self):
        return self.values.astype(np.float16)

    def update(self, total, divisor, rates):
        self.steps += 1
        gradient = np.where(self.mask, total, np.float16(0)).astype(np.float32)
        adam(gradient, self.values, self.mean, self.square, self.steps, divisor, rates)
        self.values[~self.mask] = 0


@settings(max_examples=sampling.examples(40), deadline=None)
@given(
    numel=st.integers(1, 200),
    pruned=st.sampled_from([0.0, 0.3, 0.9, 0.99]),
    ranks=st.integers(1, 4),
    microbatches=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_a_step_is_masked_dense_mixed_precision_adam_bit_for_bit(
    numel, pruned, ranks, microbatches, seed
):
    rng = np.random.default_rng(seed)
    start = rng.standard_normal(numel).astype(np.float32)
    index, steps = largest(start, kept_of(numel, 1 - pruned)), 0
    states = [prune(start, index) for _ in range(ranks)]
    dense, scale = Dense(start, index), LossScale(1024.0)
    for step in range(6):
        grads = rng.standard_normal((ranks, microbatches, numel)) * scale.value
        grads = grads.astype(np.float16)
        if step == 3:
            grads[-1, -1, index[-1]] = np.inf
        for state, mine in zip(states, grads, strict=True):
            for gradient in mine:
                pack(state, gradient)
        with np.errstate(invalid="ignore"):
            packed = rank_order_sum([state.packed for state in states])
            total = rank_order_sum([rank_order_sum(list(mine)) for mine in grads])
        divisor = scale.value * ranks * microbatches
        go = finite(packed.astype(np.float32))
        assert go == (step != 3)
        scale.after(not go)
        if go:
            steps += 1
            dense.update(total, divisor, AdamConstants())
            for state in states:
                for piece in (slice(0, len(index) // 3), slice(len(index) // 3, None)):
                    gradient = packed[piece].astype(np.float32)
                    update(state, piece, gradient, divisor, steps, AdamConstants())
        for state in states:
            state.packed.fill(0)
            assert np.array_equal(bits(state.half), bits(dense.half))
            assert np.array_equal(bits(state.values), bits(dense.values[index]))
            assert np.array_equal(bits(state.mean), bits(dense.mean[index]))
            assert np.array_equal(bits(state.square), bits(dense.square[index]))
            assert np.array_equal(bits(whole(state)), bits(dense.values))
    assert scale.value == 512.0


@pytest.mark.parametrize("pruned", [0.25, 0.8, 0.9])
def test_live_bytes_are_24_f_phi_and_2_phi(pruned):
    phi = 10_000
    share = 1 - pruned
    kept = kept_of(phi, share)
    state = prune(np.ones(phi, np.float32), random_mask(phi, kept, np.random.default_rng(0)))
    live = nbytes(state) + EXCHANGED * kept
    assert live == pytest.approx(24 * share * phi + 2 * phi, rel=1e-12)
    assert live == state_memory(kept, phi, share).total


def test_live_bytes_of_what_is_not_pruned_are_20_phi_and_the_wire():
    state = prune(np.ones(100, np.float32), None)
    assert nbytes(state) + 4 * 100 == state_memory(100, 100, 1.0).total == 2000


def test_adam_is_the_textbook_s():
    rates, value, mean, square = AdamConstants(rate=0.1), 1.0, 0.0, 0.0
    state = prune(np.ones(1, np.float32), np.zeros(1, np.int32))
    for step, gradient in enumerate((0.5, -0.25, 2.0), start=1):
        wire = np.array([gradient * 8], np.float32)
        update(state, slice(0, 1), wire, 8.0, step, rates)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        value -= 0.1 * (mean / (1 - 0.9**step)) / ((square / (1 - 0.999**step)) ** 0.5 + 1e-8)
        assert state.values[0] == pytest.approx(value, rel=1e-5)


def test_the_largest_magnitudes_are_kept():
    values = np.array([0.1, -3.0, 2.0, 0.0, -2.0], np.float32)
    assert largest(values, 2).tolist() == [1, 2]
    assert largest(values, 5).tolist() == [0, 1, 2, 3, 4]
    state = prune(values, largest(values, 2))
    assert state.half.tolist() == [0, -3, 2, 0, 0]


@pytest.mark.parametrize(
    ("index", "message"),
    [([3, 1], "must ascend"), ([1, 1], "must ascend"), ([0, 5], "must lie in 0 to 4")],
    ids=str,
)
def test_a_mask_that_is_none_is_refused(index, message):
    with pytest.raises(CommschedError, match=message):
        prune(np.ones(5, np.float32), np.array(index))
