"""Bytes priced = encoded = sent, for every legal pair of a collective and a codec, every method.

The MPI's own collectives alone are left out: what they send nobody sees. Over MPI the same packets
travel as in one process (tests/test_exam.py).
"""

from dataclasses import replace

import numpy as np
import pytest

from commsched.coding.registry import CODECS
from commsched.exchange.endpoint import GatheringEndpoint, open_endpoint
from commsched.exchange.lockstep import exchange, fresh_states
from commsched.exchange.method import Choice
from commsched.exchange.pair import Pair
from commsched.exchange.payload import frame_bytes
from commsched.exchange.registry import METHODS, find_method, legal_methods
from commsched.net.bucket import BucketSpec
from commsched.net.sparsity import Sparsity
from commsched.simulate.engine import simulate
from tests.support import sampling
from tests.support.gradients import group
from tests.support.small_plans import graph, machine, plan
from tests.test_codecs_lossy import FED, MORE
from tests.test_sparse_methods import expected_bytes

NUMEL = 1600
SHAPES = [(1, 3), (2, 2)]
METHODS_TOO = ("zen:hierarchical", "powersgd:3", "gtopk:0.1", "hitopk:0.2")


def named() -> list[tuple[str, tuple[int, int]]]:
    """Methods and shapes: by day some pairs, each with one of the shapes in turn."""
    found = []
    for number, shape in enumerate(SHAPES):
        methods = list(legal_methods(group(*shape), more=[*MORE, *FED, *METHODS_TOO]))
        pairs = {m.name: (m.collective, m.codec.name) for m in methods if isinstance(m, Pair)}
        some = {"+".join(pair) for pair in sampling.pairwise([*pairs.values()])}
        names = [m.name for m in methods if m.name not in pairs or m.name in some]
        found += [(n, shape) for n in (names if sampling.whole else names[number :: len(SHAPES)])]
    # What Ok-Topk sends depends on earlier steps: it has a test of its own.
    return [each for each in found if not each[0].startswith(("native+", "ok-topk"))]


# --- What is made, and what is sent. ---


class Logged:
    """A codec whose packets are weighed as they are made."""

    def __init__(self, codec, made):
        self._codec, self._made = codec, made

    def __getattr__(self, name):
        return getattr(self._codec, name)

    def encode(self, values, state, start=0):
        packet = self._codec.encode(values, state, start)
        self._made["last"] = packet.nbytes
        return packet


def logged(phase, made):
    """A phase of one rank whose packets are weighed where they are made on the way."""
    if phase.pieces is not None:

        def make(state, first, stop):
            packet = phase.pieces.make(state, first, stop)
            made[first, stop] = packet.nbytes  # for as many sends as there are
            return packet

        return replace(phase, pieces=phase.pieces._replace(make=make))
    if phase.payload.cuts is None:
        return phase
    return replace(phase, payload=replace(phase.payload, codec=Logged(phase.payload.codec, made)))


class Weighed:
    """Both counts of one rank of an exchange, over all that it takes out to send."""

    def __init__(self, held, made):
        self.add, self.put, self.landing = held.add, held.put, held.landing
        self.encoded = self.sent = 0
        self._held, self._made = held, made

    def take(self, first, stop):
        packet = self._held.take(first, stop)
        self.sent += packet.nbytes
        self.encoded += self._before(first, stop)
        return packet

    def _before(self, first, stop):
        """Bytes of what was encoded for this message, and of its frame."""
        if isinstance(self._held, GatheringEndpoint):
            parts = [self._held._packets[block].nbytes for block in range(first, stop)]
            return sum(parts) + int(frame_bytes(np.array(stop - first)))
        run = (first, stop)
        return self._made[run] if run in self._made else self._made.pop("last")


def launched(method, spec, members, states):
    """Run one launch: bytes by the packets that were encoded, and bytes sent, (p,) each."""
    encoded, sent = np.zeros((2, len(states)), np.int64)
    for phase in method.phases(spec, members):
        if isinstance(phase, Choice):
            phase = phase.then(phase.agreed(map(phase.vote, states)))
        made = [{} for _ in states]
        held = [
            open_endpoint(logged(phase, log), state)
            for log, state in zip(made, states, strict=True)
        ]
        both = [Weighed(each, log) for each, log in zip(held, made, strict=True)]
        exchange(phase.schedule, both)
        encoded += [each.encoded for each in both]
        sent += [each.sent for each in both]
        for state, each in zip(states, held, strict=True):
            phase.give(state, each.result())
    return encoded, sent


# --- What is priced. ---

FULL = Sparsity()
SPARSE = Sparsity(law="uniform", density=0.05)
ALIKE = Sparsity(law="mask", density=0.05)
DRAWS = 10


def of(law):
    return BucketSpec(((law, NUMEL, 0, NUMEL),))


def gradients(law, ranks, draw):
    """Values of magnitude 4 and more, which reach all thresholds that are tried: (p, n) float32.

    Supports have exactly the expected size: an element is there with the probability that is
    priced, whatever other ranks have, and only the number of elements does not vary.
    """
    grads = np.zeros((ranks, NUMEL), np.float32)
    for rank, values in enumerate(grads):
        places = np.random.default_rng([draw, 0 if law == ALIKE else rank])
        index = places.choice(NUMEL, round(NUMEL * law.density), replace=False)
        rng = np.random.default_rng([draw, rank, 1])
        values[index] = (4 + rng.random(len(index))) * rng.choice([-1, 1], len(index))
    return grads


def sizes(method, law, shape, draws):
    """Mean bytes that a rank sends in each of some first steps, which are what was encoded."""
    found, ranks = [], shape[0] * shape[1]
    for draw in range(draws):
        grads = gradients(law, ranks, draw)
        states = fresh_states([g.copy() for g in grads], draw, "b0")
        for step in (98, 99) if method.name == "mask" else (99,):  # the first finds the mask
            for state, values in zip(states, grads, strict=True):
                state["gradient"][:] = values
                state["step"] = step  # past the warm-up of DGC
            encoded, sent = launched(method, of(law), group(*shape), states)
            np.testing.assert_array_equal(encoded, sent)
        found.append(sent.mean())
    return np.array(found)


@pytest.mark.by_day(50)
@pytest.mark.parametrize("law", [FULL, SPARSE], ids=["full", "sparse"])
@pytest.mark.parametrize(("name", "shape"), named(), ids=str)
def test_bytes_are_priced_encoded_and_sent_alike(name, shape, law):
    method = find_method(name)
    law = ALIKE if (name, law) == ("mask", SPARSE) else law
    price = expected_bytes(method, of(law), shape)
    if sizes(method, law, shape, 2) == pytest.approx(price, rel=1e-9):
        return
    found = sizes(method, law, shape, DRAWS)
    # What is expected beside other numbers is known but for rounding up to whole bytes: of an
    # Elias-Fano list up to 8 arrays, each off by at most 7/16 B; else one array of bits.
    phases = [p for p in method.phases(of(law), group(*shape)) if not isinstance(p, Choice)]
    moves = [len(r.src) for phase in phases for r in phase.schedule.rounds()]
    packets = sum(moves) / (shape[0] * shape[1])
    rounding = packets * (3.5 if "elias" in name or name == "node-union" else 0.5)
    # Six standard errors of ten draws: a right price fails once in 5,000 seeds (Student's t).
    slack = 6 * np.std(found, ddof=1) / np.sqrt(DRAWS) + rounding
    assert abs(found.mean() - price) <= slack


@pytest.mark.parametrize("name", ["threshold:1", "threshold:1/onebit", "threshold:1/bloom:0.001"])
def test_what_does_not_reach_a_threshold_makes_a_packet_smaller_than_its_price(name):
    """How many elements reach it no law of a support says: the price is of all non-zeros."""
    method, shape = Pair("all-gather", name), (2, 2)
    grads = [np.random.default_rng(r).standard_normal(NUMEL).astype(np.float32) for r in range(4)]
    encoded, sent = launched(method, of(FULL), group(*shape), fresh_states(grads))
    np.testing.assert_array_equal(encoded, sent)
    assert sent.max() < expected_bytes(method, of(FULL), shape)


# --- Where bytes depend on the step. ---

WARMING = ("dgc:0.01:2", "dgc:0.01:2:0.5/qsgd:4", "dgc:0.1:3/fp16")


@pytest.mark.parametrize("name", WARMING)
def test_a_warm_up_is_priced_as_it_is_sent_step_by_step(name):
    method, shape = Pair("all-gather", name), (1, 3)
    states, seen = fresh_states([np.zeros(NUMEL, np.float32) for _ in range(3)]), []
    for step in range(10):
        for rank, state in enumerate(states):
            state["gradient"][:] = np.random.default_rng([step, rank]).standard_normal(NUMEL)
            state["step"] = step
        encoded, sent = launched(method, of(FULL), group(*shape), states)
        np.testing.assert_array_equal(encoded, sent)
        assert sent.mean() == pytest.approx(expected_bytes(method.at(step), of(FULL), shape))
        seen.append(sent.mean())
    assert seen == sorted(seen, reverse=True)
    assert seen[0] > 2 * seen[-1]
    assert method.at(10**6) is method
    assert CODECS[method.at(0).codec.name].name == method.at(0).codec.name


def test_a_simulated_warm_up_sends_what_is_sent():
    made = plan(graph([NUMEL]), machine(lanes=3), ["all-gather+dgc:0.01:2"])
    spans = simulate(made, 10).timeline()
    exchanges = np.flatnonzero(spans.nbytes)
    for i in exchanges.tolist():
        now = Pair("all-gather", "dgc:0.01:2").at(int(spans.step[i]))
        assert spans.nbytes[i] == pytest.approx(expected_bytes(now, of(FULL), (1, 3)), abs=1)
    assert len(exchanges) == 10 * 3


def test_ok_topk_sends_what_is_priced_where_supports_differ_and_k_sums_are_large():
    """64 steps, which two thresholds and one table of regions serve; nothing is kept for later."""
    method, shape, count = METHODS["ok-topk:0.01"], (2, 2), NUMEL // 100
    states, total = fresh_states([np.zeros(NUMEL, np.float32) for _ in range(4)]), []
    place = np.arange(count)
    for step in range(64):
        for rank, state in enumerate(states):
            state["gradient"].fill(0)
            sign = np.random.default_rng([step, rank]).choice([-1, 1], count)
            # Regions end at offset 1. The rank whose elements lie at 0 owns one in the middle.
            index = NUMEL // count * place + (rank + 3) % 4
            state["gradient"][index] = sign * (1 + (place % 4 == rank))
            state["step"] = step
        encoded, sent = launched(method, of(FULL), group(*shape), states)
        np.testing.assert_array_equal(encoded, sent)
        total.append(sent.mean())
        for state in states:
            state["lost"].fill(0)
    assert np.mean(total) == pytest.approx(expected_bytes(method, of(FULL), shape), rel=1e-9)
