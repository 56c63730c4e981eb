"""Closed forms against the play of every move, and prices of exchanges and methods."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched import shipped
from commsched.coding.registry import CODECS
from commsched.cost import price
from commsched.cost.closed import FORMS, closed
from commsched.cost.play import moves_up_to, play
from commsched.exchange.method import Choice, Method, resolved
from commsched.exchange.pair import Pair
from commsched.exchange.payload import Payload
from commsched.exchange.registry import find_method, legal_methods
from commsched.machine import file as machine_file
from commsched.machine.model import CodecRate, Group, Link, Machine, Nic, resized
from commsched.net.bucket import BucketSpec
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Schedule
from tests.support import sampling
from tests.support.exchanges import DEVICE, carry
from tests.support.small_plans import machine

LINK = Link(latency=5e-6, overhead=1e-6, per_byte=1e-10)
# Bytes of a run: a header, and what adds up over runs.
ADDITIVE = [
    name for name in CODECS if CODECS[name].addable and (CODECS[name].fixed or name == "coo")
]
LOGARITHMIC = {"doubling", "halving-doubling", "tree"}


def flat(ranks: int, link: Link = LINK, rate: CodecRate | None = None, **keys: object) -> Machine:
    codecs = dict.fromkeys(CODECS, rate) if rate else {}
    made = Machine(
        name="test",
        node_of_rank=(0,) * ranks,
        inside=link,
        between=link,
        nic=None,
        device=replace(DEVICE, codecs=codecs),
    )
    return replace(made, **keys)


def both(name: str, on: Machine, spec: BucketSpec, codec: str = "dense") -> tuple:
    """The closed form and the play of the same exchange."""
    schedule = COLLECTIVES[name](on.everyone)
    question = schedule, carry(schedule, codec, spec), on, on.everyone
    cost = closed(*question)
    assert cost is not None
    return cost, play(*question, np.zeros(on.size))


# --- Closed forms. ---

seconds = st.floats(0, 1e-3)
slopes = st.sampled_from([0.0, 1e-10, 3e-9, 1e-8])
links = st.builds(Link, latency=seconds, overhead=seconds, per_byte=slopes)
rates = st.builds(
    CodecRate,
    encode=slopes,
    add=slopes,
    decode=slopes,
    fixed=seconds,
    fixed_add=st.none() | seconds,
    fixed_decode=st.none() | seconds,
    encode_sparse=st.sampled_from([1.0, 0.3]),
    decode_dense=st.sampled_from([1.0, 7.0]),
)


def test_every_visible_route_has_a_closed_form():
    assert set(FORMS) == set(COLLECTIVES) - {"native"}
    schedule = COLLECTIVES["native"](flat(4).everyone)
    payload = carry(schedule, "dense", BucketSpec.uniform(9))
    assert closed(schedule, payload, flat(4), flat(4).everyone) is None


@pytest.mark.parametrize("name", list(FORMS))
@given(
    ranks=st.integers(1, 20),
    block=st.integers(0, 10**4),
    link=links,
    rate=rates,
    codec=st.sampled_from(ADDITIVE),
)
def test_on_equal_links_a_closed_form_is_what_is_played(name, ranks, block, link, rate, codec):
    spec = BucketSpec.uniform(16 * ranks * block, 0.03 if codec == "coo" else 1.0)
    cost, played = both(name, flat(ranks, link, rate), spec, codec)
    exact = 1e-9
    if name in LOGARITHMIC and ranks & (ranks - 1):
        # Sums of different numbers of ranks meet; a sparse packet counts as their mean.
        exact = 0.1 if codec == "coo" else exact
        assert cost.seconds >= played.end.max() * (0.7 if codec == "coo" else 1 - exact)
    else:
        assert cost.seconds == pytest.approx(played.end.max(), rel=exact, abs=1e-15)
    assert cost.sent == pytest.approx(played.sent.mean(), rel=exact)
    assert cost.messages == pytest.approx(played.messages.mean(), rel=1e-9)


@given(p=st.integers(2, 40), numel=st.integers(0, 10**7), link=links, rate=rates)
def test_a_dense_ring_costs_what_the_textbook_says(p, numel, link, rate):
    rate = replace(rate, encode=0.0, decode=0.0)
    cost, _ = both("ring", flat(p, link, rate), BucketSpec.uniform(numel))
    n, away = 4 * numel, link.latency + 2 * link.overhead
    want = 2 * (p - 1) * (away + n * link.per_byte / p)
    want += (p - 1) * (rate.per_add + n * rate.add / p)
    assert cost.seconds == pytest.approx(want, rel=1e-9)


@given(k=st.integers(0, 6), numel=st.integers(0, 10**7), link=links)
def test_few_rounds_cost_what_the_textbook_says(k, numel, link):
    p, n, free = 2**k, 4 * numel, CodecRate(encode=0.0, add=0.0, decode=0.0)
    away, g = link.latency + 2 * link.overhead, link.per_byte
    want = {
        "doubling": k * (away + n * g),
        "halving-doubling": 2 * k * away + 2 * (p - 1) / p * n * g,
        "tree": 2 * k * (away + n * g),
    }
    for name, value in want.items():
        cost, _ = both(name, flat(p, link, free), BucketSpec.uniform(numel))
        assert cost.seconds == pytest.approx(value, rel=1e-9)


@given(nodes=st.integers(1, 5), lanes=st.integers(1, 5), per_node=st.integers(1, 3), rate=rates)
def test_a_hierarchy_is_what_is_played_with_shared_ports_too(nodes, lanes, per_node, rate):
    on = resized(flat(1, rate=rate), nodes, lanes)
    on = replace(on, inside=replace(LINK, per_byte=1e-11), nic=Nic(per_node=1, per_byte=1e-10))
    cost, played = both("hierarchical", on, BucketSpec.uniform(60 * on.size))
    assert cost.seconds == pytest.approx(played.end.max(), rel=1e-9)


@given(
    name=st.sampled_from(list(FORMS)),
    k=st.integers(0, 4),
    start=st.lists(seconds, min_size=16, max_size=16),
)
def test_a_closed_form_is_off_by_no_more_than_the_spread_of_the_starts(name, k, start):
    on, begin = flat(2**k), np.array(start[: 2**k])
    schedule = COLLECTIVES[name](on.everyone)
    question = schedule, carry(schedule, "dense", BucketSpec.uniform(1600)), on, on.everyone
    alone = closed(*question).seconds
    end = play(*question, begin).end.max()
    assert begin.min() + alone <= end * (1 + 1e-9)
    assert end <= (begin.max() + alone) * (1 + 1e-9)


@pytest.mark.by_day(6)
@pytest.mark.parametrize(
    ("machine", "name"), sampling.some([*product(shipped.names("machines"), FORMS)], 20)
)
def test_on_the_shipped_machines_a_closed_form_is_within_15_percent(machine, name):
    base = machine_file.load(machine)
    for nodes in (2, 4, 8, 16):
        on = resized(base, nodes, base.everyone.lanes)
        if on.size > 512 or not COLLECTIVES[name](on.everyone).apt:
            continue
        for codec, numel in [
            ("dense", 10**3),
            ("dense", 10**7),
            ("fp16", 10**5),
            ("coo", 10**6),
            ("elias", 10**6),
            ("block", 10**7),
        ]:
            cost, played = both(name, on, BucketSpec.uniform(numel, 0.01), codec)
            if name in LOGARITHMIC and on.size & (on.size - 1):
                assert cost.seconds >= played.end.max() * 0.85
            else:
                assert cost.seconds == pytest.approx(played.end.max(), rel=0.15)


@pytest.mark.parametrize("nic", [None, Nic(per_node=1, per_byte=LINK.per_byte)])
@pytest.mark.parametrize("name", ["ring", "hierarchical", "direct", "all-to-all", "doubling"])
def test_one_slow_node_slows_an_exchange_in_its_closed_form_too(name, nic):
    slow = replace(LINK, per_byte=10 * LINK.per_byte)
    on = replace(resized(flat(1), 8, 4), overrides={3: slow}, nic=nic)
    cost, played = both(name, on, BucketSpec.uniform(10**6))
    assert cost.seconds == pytest.approx(played.end.max(), rel=0.1)


@pytest.mark.parametrize("name", ["ring", "all-gather", "reduce-scatter"])
@given(nodes=st.integers(1, 5), lanes=st.integers(1, 5))
def test_where_latency_is_all_a_ring_leaves_out_its_fastest_hops(name, nodes, lanes):
    on = resized(flat(1, rate=CodecRate(encode=0.0, add=0.0, decode=0.0)), nodes, lanes)
    between = Link(latency=7e-6, overhead=0.0, per_byte=0.0)
    on = replace(on, inside=replace(between, latency=2e-6), between=between)
    cost, played = both(name, on, BucketSpec.uniform(100))
    assert cost.seconds == pytest.approx(played.end.max(), rel=1e-9)


# --- Exchanges. ---


def asked(name: str, on: Machine, numel: int = 1000) -> tuple[Schedule, Payload, Machine, Group]:
    schedule = COLLECTIVES[name](on.everyone)
    return schedule, carry(schedule, "dense", BucketSpec.uniform(numel)), on, on.everyone


@given(name=st.sampled_from(list(FORMS)), ranks=st.integers(1, 12), limit=st.integers(0, 300))
def test_moves_are_counted_up_to_the_limit(name, ranks, limit):
    schedule = COLLECTIVES[name](flat(ranks).everyone)
    moves = sum(len(r.src) for r in schedule.rounds())
    found = moves_up_to(schedule, limit)
    assert found == moves if moves <= limit else limit < found <= limit + ranks


@pytest.mark.parametrize("name", list(FORMS))
def test_beyond_the_limit_the_closed_form_starts_with_the_last(name):
    question, start = asked(name, flat(8)), np.linspace(1.0, 2.0, 8)
    few, many = (price.exchange(*question, start, limit=limit) for limit in (0, 10**6))
    np.testing.assert_array_equal(many.end, play(*question, start).end)
    np.testing.assert_allclose(few.end, 2.0 + closed(*question).seconds, rtol=1e-12)
    assert few.sent.sum() == pytest.approx(many.sent.sum(), rel=1e-9)
    if name != "tree":  # 14 messages of 8 ranks
        np.testing.assert_array_equal(few.messages, many.messages)


@pytest.mark.parametrize("name", ["tree", "doubling", "halving-doubling"])
def test_exchanges_of_unevenly_filled_nodes_are_played_where_a_formula_adds_up_too_much(name):
    uneven = replace(machine(1, 15), node_of_rank=(0,) * 8 + (1,) * 7)
    question, start = asked(name, uneven), np.zeros(15)
    found = price.exchange(*question, start, limit=0)
    np.testing.assert_array_equal(found.end, play(*question, start).end)
    assert closed(*question).seconds > found.end.max()


def test_a_measured_all_reduce_costs_its_seconds_and_the_bytes_of_its_algorithm():
    on, start = flat(8), np.linspace(0.0, 1.0, 8)
    known = replace(on, native=((4000.0, 0.25),), startup=0.1)
    got = price.exchange(*asked("native", known), start)
    assert got.end.tolist() == [1.25] * 8
    want = price.exchange(*asked("halving-doubling", on), start)
    np.testing.assert_array_equal(got.sent, want.sent)
    np.testing.assert_array_equal(got.messages, want.messages)
    assert price.exchange(*asked("native", flat(1)), start[:1]).end.tolist() == [0.0]


def test_beyond_what_was_measured_a_sum_takes_longer_by_its_algorithms_model():
    on, start = flat(8), np.zeros(8)
    known = replace(on, native=((4000.0, 0.25),))
    lasts, modelled = (
        [price.exchange(*asked("native", m, n), start, limit=0).end.max() for n in (1000, 50_000)]
        for m in (known, on)
    )
    assert lasts[0] == 0.25
    assert lasts[1] - lasts[0] == pytest.approx(modelled[1] - modelled[0])


def test_measured_seconds_follow_a_power_law_and_hold_below_the_first_and_past_the_last():
    points = ((0.0, 0.0), (100.0, 1e-6), (10_000.0, 1e-5), (1_000_000.0, 1e-3))
    bytes_ = [0, 50, 100, 1000, 10_000, 100_000, 1_000_000, 1e8]
    got = [price.measured(points, n) for n in bytes_]
    half = 10**-5.5
    want = [1e-6, 1e-6, 1e-6, half, 1e-5, 1e-4, 1e-3, 1e-3]
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_votes_go_around_a_ring_with_eight_bytes_each():
    got = price.votes(flat(5), flat(5).everyone, np.zeros(5))
    assert got.sent.tolist() == [32.0] * 5
    assert got.messages.tolist() == [4] * 5


# --- Methods. ---


@pytest.mark.parametrize("density", [1.0, 0.01])
def test_every_legal_method_has_a_price(density):
    on, spec = resized(flat(1), 2, 4), BucketSpec.uniform(10**5, density)
    for method in legal_methods(on.everyone):
        found = price.price(method, spec, on, on.everyone)
        assert found.seconds > 0
        assert found.sent > 0
        assert found.seconds == price.method_seconds(method, spec, on, on.everyone)


BESIDE = ["p3.16xlarge", "summit", "superpod-h100", "localhost"]
METHODS_TURN = 1 if sampling.whole else 3  # by day a method is priced on one machine of this many


@pytest.mark.by_day(1)
@pytest.mark.parametrize("name", BESIDE)
def test_exchanges_that_are_priced_together_cost_what_each_costs_alone(name):
    """To the bit: of all methods, at several sizes and on links of several speeds."""
    on = resized(machine_file.load(name), 2)
    faster = replace(on, inside=replace(on.inside, per_byte=on.inside.per_byte / 3))
    group, start = on.everyone, np.linspace(0.0, 1e-5, on.size)
    methods = [*legal_methods(group, more=("topk:0.05", "powersgd:2", "quant:4"))]
    asked = [
        price.ToPrice(one.schedule, one.payload, machine, group, start, later)
        for method in methods[BESIDE.index(name) % METHODS_TURN :: METHODS_TURN]
        for numel, density in ((7, 1.0), (300_001, 0.01), (2**22, 1.0))
        for one in method.expected_phases(BucketSpec.uniform(numel, density), group)
        for machine, later in ((on, False), (faster, True))
    ]
    together = price.exchanges(asked)
    for one, found in zip(asked, together, strict=True):
        (alone,) = price.exchanges([one])
        for part in ("end", "sent", "messages"):
            np.testing.assert_array_equal(getattr(found, part), getattr(alone, part))


def test_a_method_costs_its_coding_and_its_exchange():
    on = flat(4)
    spec = BucketSpec.uniform(1000, 0.1)
    [phase] = Pair("all-gather", "coo").phases(spec, on.everyone)
    found = price.price(Pair("all-gather", "coo"), spec, on, on.everyone)
    end = play(phase.schedule, phase.payload, on, on.everyone, np.zeros(4)).end.max()
    assert found.encode == phase.take_seconds(DEVICE) > 0
    assert found.decode == phase.give_seconds(DEVICE) > 0
    assert found.exchange == end
    assert found.seconds == found.encode + found.exchange + found.decode


def test_a_choice_costs_its_votes_and_what_is_expected():
    class Undecided(Method):
        name, lossless = "undecided", True

        def phases(self, spec, group):
            [dense] = Pair("ring", "dense").phases(spec, group)
            [tree] = Pair("tree", "dense").phases(spec, group)
            choice = Choice(
                name="which",
                vote=lambda state: 1.0,
                agree="max",
                expected=1.0,
                then=lambda value: dense if value else tree,
            )
            return (choice,)

    on, spec = flat(4), BucketSpec.uniform(1000)
    known = price.price(Pair("ring", "dense"), spec, on, on.everyone)
    found = price.price(Undecided(), spec, on, on.everyone)
    votes = price.votes(on, on.everyone, np.zeros(4))
    assert found.seconds == pytest.approx(known.seconds + votes.end.max(), rel=1e-12)
    assert found.sent == known.sent + 3 * 8


def test_an_exchange_waits_for_the_start_up_before_its_first_message():
    on = machine(2, 2)
    phase = resolved(find_method("ring+fp16").phases(BucketSpec.uniform(5000), on.everyone)[0])
    start = np.array([0.0, 1e-3, 0.0, 2e-4])
    ends = [
        price.exchange(phase.schedule, phase.payload, each, on.everyone, start).end
        for each in (on, replace(on, startup=3e-3))
    ]
    np.testing.assert_allclose(ends[1] - ends[0], 3e-3)


# --- Error feedback. ---


@pytest.mark.parametrize("name", CODECS)
def test_feedback_takes_what_was_measured_or_else_its_memory_traffic(name):
    codec, seconds = CODECS[name], 7e-9
    rate = CodecRate(encode=1e-9, add=1e-9, decode=1e-9)
    unknown = replace(DEVICE, codecs={name: rate})
    known = replace(DEVICE, codecs={name: replace(rate, feedback=seconds)})
    traffic = codec.feedback_traffic / DEVICE.bandwidth
    assert codec.feedback_rate(known) == pytest.approx(seconds * codec.feedback)
    assert codec.feedback_rate(unknown) == pytest.approx(traffic * codec.feedback)
    pair = Pair("all-gather", name)
    prices = [
        price.price(pair, BucketSpec.uniform(10000), on, on.everyone).encode
        for on in (replace(flat(2), device=device) for device in (known, unknown))
    ]
    more = 4 * 10000 * (seconds - traffic) * codec.feedback
    assert prices[0] - prices[1] == pytest.approx(more, abs=1e-12)


@pytest.mark.parametrize("name", ["randomk:0.01", "fp16", "fp16:feedback"])
def test_ranks_that_merge_take_memory_traffic_to_keep_what_they_drop(name):
    codec, spec = CODECS[name], BucketSpec.uniform(10000)
    ring = COLLECTIVES["ring"](flat(2).everyone)
    own, plain = carry(ring, name, spec).rate(DEVICE), codec.rate(DEVICE)
    assert (own.encode > plain.encode) == codec.feedback
    # Copy 2, subtract 3, look for NaN 1, add 3 (B moved per B of values).
    assert own.encode - plain.encode == pytest.approx(9 / DEVICE.bandwidth * codec.feedback)
    assert own.decode == plain.decode
