"""Every legal pair, all ranks in one process: NumPy's sum, and equal bits on all ranks."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsched.coding.registry import CODECS
from commsched.exchange.lockstep import fresh_states, run_method
from commsched.exchange.pair import Pair
from commsched.exchange.registry import legal_methods
from commsched.run.engine.script import script
from commsched.schedule.view import moves_of
from tests.support import sampling
from tests.support.gradients import SUPPORTS, bits, gradient, gradients, group, rounded, spec
from tests.test_codecs_lossy import MORE

SHAPES = [(1, 1), (1, 2), (1, 3), (2, 2), (5, 1), (1, 5), (2, 4), (4, 2)]
FEW = [(1, 1), (1, 3), (2, 2), (5, 1), (2, 4)] if not sampling.whole else SHAPES
PAIRS = sorted(
    {
        (method.collective, method.codec.name)
        for shape in SHAPES
        for method in legal_methods(group(*shape), more=MORE)
        if isinstance(method, Pair) and method.collective != "native"
    }
)
SOME = sampling.pairwise(PAIRS)
# Whole numbers up to 64 survive in these.
WHOLE = [pair for pair in PAIRS if CODECS[pair[1]].lossless or pair[1] in ("fp16", "bf16")]


def results(pair, shape, grads):
    states = fresh_states([g.copy() for g in grads])
    run_method(Pair(*pair), spec(len(grads[0])), group(*shape), states)
    return [state["result"] for state in states]


@pytest.mark.by_day(12)
@pytest.mark.parametrize("pair", sampling.pairwise(WHOLE), ids="+".join)
def test_every_exact_pair_sums_whole_numbers_like_numpy(pair):
    for number, (shape, kind) in enumerate(product(FEW, SUPPORTS)):
        ranks = shape[0] * shape[1]
        numels = (1, ranks - 1, ranks, 64)
        for numel in numels if sampling.whole else {numels[number % 4], 64}:
            grads = gradients(kind, ranks, max(1, numel))
            for found in results(pair, shape, grads):
                np.testing.assert_array_equal(found, np.sum(grads, axis=0), f"{kind} {numel}")


@pytest.mark.by_day(31)
@pytest.mark.parametrize("pair", SOME, ids="+".join)
def test_every_legal_pair_leaves_equal_bits_on_all_ranks(pair):
    for shape, numel in product(FEW, (3, 200)):
        first, *others = results(pair, shape, rounded(shape[0] * shape[1], numel))
        for other in others:
            np.testing.assert_array_equal(bits(other), bits(first))


@pytest.mark.by_day(12)
@pytest.mark.parametrize("pair", sampling.pairwise(WHOLE), ids="+".join)
@settings(max_examples=sampling.examples(40))
@given(nodes=st.integers(1, 4), lanes=st.integers(1, 4), numel=st.integers(1, 60), data=st.data())
def test_every_exact_pair_sums_mixed_supports_on_any_shape(pair, nodes, lanes, numel, data):
    ranks = nodes * lanes
    kinds = data.draw(st.lists(st.sampled_from(SUPPORTS), min_size=ranks, max_size=ranks))
    grads = [gradient(kind, rank, numel) for rank, kind in enumerate(kinds)]
    for found in results(pair, (nodes, lanes), grads):
        np.testing.assert_array_equal(found, np.sum(grads, axis=0))


@pytest.mark.parametrize("pair", [p for p in PAIRS if p[1] in ("fp16", "bf16")], ids="+".join)
def test_a_rounded_sum_is_near_the_sum(pair):
    ranks, numel = 6, 300
    grads = rounded(ranks, numel)
    largest = 2.0**-11 if pair[1] == "fp16" else 2.0**-8
    size = np.sum(np.abs(grads), axis=0)
    for found in results(pair, (2, 3), grads):
        # Each of at most `ranks` hops rounds a partial sum once, and the last one its result.
        assert (np.abs(found - np.sum(grads, axis=0)) <= (ranks + 1) * largest * size).all()


def test_a_nan_on_one_rank_reaches_all_ranks():
    for pair in SOME:
        grads = gradients("sparse", 4, 50)
        grads[2][7] = np.nan
        for found in results(pair, (2, 2), grads):
            broken = np.flatnonzero(np.isnan(found)).tolist()
            assert broken == [7] if pair in WHOLE else 7 in broken, pair


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_rank_sends_only_after_what_it_carries_is_merged(shape):
    methods = legal_methods(group(*shape))
    one_of_each = {m.collective: m for m in methods if isinstance(m, Pair)}
    for name, method in one_of_each.items():
        if name == "native":
            continue
        schedule = method.phases(spec(64), group(*shape))[0].schedule
        for rank in range(schedule.ranks):
            sends, receives = moves_of(schedule, rank)
            mine = script(schedule, rank)
            assert [(s.peer, s.first, s.stop) for s in mine.sends] == [m[1:4] for m in sends]
            assert [(r.peer, r.first, r.stop) for r in mine.receives] == [m[1:4] for m in receives]
            for send, move in zip(mine.sends, sends, strict=True):
                blocks = set(range(move.first, move.stop))
                needed = [
                    number
                    for number, receive in enumerate(receives, 1)
                    if receive.round < move.round and blocks & set(range(*receive[2:4]))
                ]
                assert send.merged == max(needed, default=0)
            for receive, move in zip(mine.receives, receives, strict=True):
                blocks = set(range(move.first, move.stop))
                leaving = [
                    number
                    for number, send in enumerate(sends, 1)
                    if send.round <= move.round and blocks & set(range(*send[2:4]))
                ]
                assert receive.sent == max(leaving, default=0)
