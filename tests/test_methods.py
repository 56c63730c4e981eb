"""Methods of every kind fit the interfaces: in one process they sum, agree and lose nothing."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.exchange.endpoint import GatheringEndpoint
from commsched.exchange.lockstep import fresh_states, run_method
from commsched.exchange.method import Choice
from commsched.exchange.pair import Pair, illegal, route
from commsched.exchange.payload import Payload
from commsched.exchange.registry import METHODS, find_method, legal_methods
from commsched.schedule.check import exclusive
from tests.support import sample_methods, sampling
from tests.support.gradients import SUPPORTS, bits, gradients, group, rounded, spec

LOSSLESS = (*sample_methods.LOSSLESS, *(method for method in METHODS.values() if method.lossless))
ALL = (*sample_methods.ALL, *METHODS.values())
SHAPES = sampling.some([(1, 1), (1, 2), (1, 3), (2, 2), (5, 1), (2, 3), (1, 7), (2, 4)], 4)


def run(method, grads, shape, seed=0):
    """Run one step; all ranks' states afterwards, and the decisions."""
    states = fresh_states([g.copy() for g in grads], seed, "b0")
    numel = len(grads[0])
    decisions = run_method(method, spec(numel), group(*shape), states)
    return states, decisions


def assert_equal_bits(states):
    for state in states[1:]:
        np.testing.assert_array_equal(bits(state["result"]), bits(states[0]["result"]))


def steps(method, shape, count, numel, seed):
    """Run steps with fresh gradients and the state that lives on; yields gradients and states."""
    ranks = shape[0] * shape[1]
    states = fresh_states([np.zeros(numel, np.float32) for _ in range(ranks)], seed, "b0")
    for step in range(count):
        grads = gradients("sparse" if step % 2 else "full", ranks, numel, seed + step)
        for state, gradient in zip(states, grads, strict=True):
            state["gradient"][:] = gradient
            state["step"] = step
        run_method(method, spec(numel), group(*shape), states)
        yield grads, states


# --- The exam of methods of several phases. ---


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("method", LOSSLESS, ids=lambda m: m.name)
def test_a_lossless_method_of_several_phases_sums_like_numpy(method, shape):
    ranks = shape[0] * shape[1]
    for kind, numel in product(SUPPORTS, (1, 5, 101, 1000)):
        grads = gradients(kind, ranks, numel)
        for state in run(method, grads, shape)[0]:
            np.testing.assert_array_equal(state["result"], np.sum(grads, axis=0))


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 2)], ids=str)
@pytest.mark.parametrize("method", LOSSLESS, ids=lambda m: m.name)
def test_a_lossless_method_is_right_with_the_state_of_earlier_steps(method, shape):
    for grads, states in steps(method, shape, 4, 150, 3):
        for state in states:
            np.testing.assert_array_equal(state["result"], np.sum(grads, axis=0))


@pytest.mark.parametrize("method", LOSSLESS, ids=lambda m: m.name)
def test_a_broken_gradient_is_seen_by_all_ranks(method):
    for broken in (np.nan, np.inf):
        grads = gradients("sparse", 4, 300)
        grads[2][[0, 7, 299]] = broken
        for state in run(method, grads, (2, 2))[0]:
            np.testing.assert_array_equal(state["result"], np.sum(grads, axis=0))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("method", ALL, ids=lambda m: m.name)
def test_every_method_leaves_equal_bits_on_all_ranks(method, shape):
    for numel in (1, 2, 103):
        states, _ = run(method, rounded(shape[0] * shape[1], numel), shape)
        assert_equal_bits(states)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("method", ALL, ids=lambda m: m.name)
def test_the_payload_knows_the_bytes_of_every_block(method, shape):
    ranks = shape[0] * shape[1]
    for phase in method.phases(spec(100), group(*shape)):
        if isinstance(phase, Choice):
            phase = phase.then(phase.expected)
        first = np.arange(phase.schedule.blocks)
        wire = phase.payload.wire(first, first + 1, 1)
        assert wire.shape == first.shape
        assert (wire >= 0).all()
        assert wire[0] > 0 or ranks == 1


# --- Feedback: sent + left = sum of the gradients, over all ranks together. ---


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("method", sample_methods.FEEDBACK, ids=lambda m: m.name)
@given(numel=st.integers(1, 80), seed=st.integers(0, 9))
def test_what_a_merging_rank_drops_is_kept_by_it(method, shape, numel, seed):
    sent = total = np.zeros(numel, np.float32)
    states = []
    for grads, states in steps(method, shape, 3, numel, seed):
        sent = sent + states[0]["result"]
        total = total + np.sum(grads, axis=0)
    left = np.sum([state["lost"] for state in states], axis=0)
    np.testing.assert_array_equal(sent + left, total)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_low_rank_with_feedback_loses_nothing(shape):
    numel, sent, total, states = 200, 0.0, 0.0, []
    for grads, states in steps(sample_methods.LowRank(), shape, 4, numel, 1):
        sent = sent + states[0]["result"].astype(np.float64)
        total = total + np.sum(grads, axis=0)
    left = np.sum([state["error"][:numel] for state in states], axis=0)
    # float32 products of 15 x 15 matrices whose elements stay below 100
    np.testing.assert_allclose(sent + left, total, atol=1e-2)


def test_low_rank_is_exact_for_a_matrix_of_rank_two_once_warm():
    rng = np.random.default_rng(3)
    matrix = rng.standard_normal((20, 2)) @ rng.standard_normal((2, 20))
    grads = [(matrix * (r + 1)).astype(np.float32).ravel() for r in range(3)]
    states, _ = run(sample_methods.LowRank(), grads, (1, 3))
    np.testing.assert_allclose(states[0]["result"], np.sum(grads, axis=0), rtol=1e-3, atol=1e-3)


def test_feedback_is_only_taken_where_each_sum_is_made_once():
    assert all(exclusive(route(m.collective, group(2, 2))) for m in sample_methods.FEEDBACK)
    assert not exclusive(route("doubling", group(2, 2)))


def test_the_sender_of_a_rounded_sum_keeps_what_it_rounded_away():
    class Rounded(sample_methods.Feedback):
        def phases(self, spec, group):
            (only,) = super().phases(spec, group)
            payload = Payload.reducing(only.schedule, CODECS["bf16"], spec)
            return (replace(only, payload=payload),)

    for name in ("ring", "tree", "direct", "hierarchical"):
        grads = rounded(6, 50)
        states, _ = run(Rounded(name), grads, (2, 3))
        left = np.sum([state["lost"].astype(np.float64) for state in states], axis=0)
        # float32 additions of a few normal numbers; bf16 alone would err by 2e-2
        np.testing.assert_allclose(states[0]["result"] + left, np.sum(grads, axis=0), atol=1e-5)


# --- Rounding at random. ---


def test_stochastic_rounding_follows_seed_step_rank_and_name():
    pair = sample_methods.Unlisted("all-gather", sample_methods.Quantised())
    grads = rounded(2, 50)

    def sent(**changes):
        states = fresh_states([g.copy() for g in grads], 1, "b0")
        for state in states:
            state.update(changes)
        run_method(pair, spec(50), group(1, 2), states)
        return states[0]["result"].tobytes()

    assert sent() == sent()
    others = [sent(seed=2), sent(step=1), sent(name="b1")]
    assert len({sent(), *others}) == 4


def test_stochastic_rounding_is_right_on_average():
    codec, values = sample_methods.Quantised(), np.array([0.137, -0.71, 1.0], np.float32)
    out, draws = np.zeros(3, np.float32), 4000
    total = np.zeros(3)
    for step in range(draws):
        codec.decode(codec.encode(values, {"seed": 0, "step": step, "rank": 0, "name": "w"}), out)
        total += out
    # A step is 1/100 of the scale; five standard errors of a rounding to either side.
    np.testing.assert_allclose(total / draws, values, atol=5 * 0.005 / np.sqrt(draws))


# --- Choices. ---


@pytest.mark.parametrize(("kind", "phase"), [("full", "dense"), ("one", "coo")])
def test_a_dense_sum_is_gathered_densely_and_a_sparse_one_as_lists(kind, phase):
    method = sample_methods.Switching()
    grads = gradients(kind, 4, 100)
    _, decisions = run(method, grads, (1, 4))
    assert decisions == {"switch": float(np.count_nonzero(np.sum(grads, axis=0)))}
    choice = method.phases(spec(100), group(1, 4))[1]
    assert choice.then(decisions["switch"]).payload.codec.name == phase


def test_a_choice_may_come_before_anything_is_sent():
    grads = gradients("alone", 4, 100)
    states, decisions = run(sample_methods.EarlyChoice(), grads, (1, 4))
    assert decisions == {"way": 100.0}
    np.testing.assert_array_equal(states[3]["result"], grads[0])


# --- Pairs and names. ---


def test_the_legal_pairs_of_a_group_are_all_pairs_that_no_rule_refuses():
    for shape in SHAPES:
        found = [m.name for m in legal_methods(group(*shape)) if isinstance(m, Pair)]
        assert len(found) == len(set(found))
        assert {"ring+dense", "tree+fp16", "all-gather+coo", "native+dense"} <= set(found)
        assert not {"native+fp16", "all-to-all+dense", "reduce-scatter+dense"} & set(found)
        lossless = {m.name for m in legal_methods(group(*shape), lossless=True)}
        assert lossless == {n for n in [*found, *METHODS] if find_method(n).lossless}


def test_an_illegal_pair_is_refused_with_a_sentence():
    cases = {
        "native+fp16": "sums float32 itself; use codec 'dense'",
        "all-to-all+dense": "does not leave the sum on every rank",
        "reduce-scatter+coo": "does not leave the sum on every rank",
    }
    for name, message in cases.items():
        with pytest.raises(CommschedError, match=message):
            find_method(name).phases(spec(10), group(1, 2))
    reason = illegal(route("ring", group(1, 2)), sample_methods.Quantised())
    assert reason is not None
    assert "cannot add packets, but collective 'ring' needs it; use 'all-gather'" in reason


def test_an_unknown_method_is_named_with_what_is_allowed():
    with pytest.raises(CommschedError, match=r"no method named 'rign'; allowed: COLLECTIVE"):
        find_method("rign")
    with pytest.raises(CommschedError, match=r"no collective named 'rign'; known: .*ring"):
        find_method("rign+dense")
    with pytest.raises(CommschedError, match=r"no codec named 'denes'; known: .*dense"):
        find_method("ring+denes")
    assert all(find_method(name).name == name for name in METHODS)


def test_a_shape_that_a_collective_does_not_fit_leaves_it_out():
    from commsched.machine.model import Group

    uneven = Group(ranks=(0, 1, 2), nodes=(0, 0, 1))
    names = [method.name for method in legal_methods(uneven)]
    assert "ring+dense" in names
    assert not [name for name in names if name.startswith("hierarchical")]


@given(data=st.data(), lengths=st.lists(st.integers(0, 9), min_size=2, max_size=6))
def test_packets_of_any_length_travel_together_in_one_message(data, lengths):
    count = len(lengths)
    packets = {i: np.arange(n, dtype=np.uint8) + i for i, n in enumerate(lengths)}
    first = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(first + 1, count))
    there = GatheringEndpoint({}, list(range(first, stop)))
    there.put(first, stop, GatheringEndpoint(packets, []).take(first, stop))
    for block, packet in zip(range(first, stop), there.result(), strict=True):
        np.testing.assert_array_equal(packet, packets[block])


def test_a_torn_message_of_packets_is_refused():
    packets = {i: np.arange(3, dtype=np.uint8) for i in range(2)}
    message = GatheringEndpoint(packets, []).take(0, 2)
    for torn in (message[:-1], np.concatenate([message, message[:1]]), message[:16], message[:3]):
        with pytest.raises(CommschedError, match="does not hold 2 packets"):
            GatheringEndpoint({}, [0, 1]).put(0, 2, torn)


def test_every_codec_is_in_a_legal_pair():
    used = {m.codec.name for m in legal_methods(group(1, 2)) if isinstance(m, Pair)}
    assert used == set(CODECS)
