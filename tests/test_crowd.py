"""Ranks that share cores: coding lengthens exchanges in memory by what it takes, and no more."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.calibrate import exercise
from commsched.cost.price import price
from commsched.exchange.registry import find_method
from commsched.machine.model import CodecRate
from commsched.net.bucket import BucketSpec
from commsched.simulate.cpu import MOST, SharedCores, Spans, longer, shares, under_compute
from commsched.simulate.engine import simulate
from tests.support.small_plans import graph, machine, plan


def crowd(cores: int) -> SharedCores:
    return SharedCores(shares(replace(machine(1, 4), cores=cores)))


@pytest.mark.parametrize(("cores", "share"), [(0, 0.0), (8, 0.0), (6, 0.5), (4, MOST), (2, MOST)])
def test_the_share_of_coding_that_comes_on_top_follows_from_the_cores(cores, share):
    found = crowd(cores)
    found.coded(np.full(4, 1.0), np.full(4, 2.0))
    got = found.stretched(np.full(4, 0.0), np.full(4, 10.0))
    np.testing.assert_allclose(got, 10.0 + share)


def test_only_coding_during_the_exchange_counts():
    found = crowd(2)
    found.coded(np.full(4, 0.0), np.full(4, 1.0))
    found.coded(np.array([1.5, 2.5, 4.0, 1.0]), np.array([2.5, 3.5, 5.0, 5.0]))
    got = found.stretched(np.full(4, 2.0), np.full(4, 3.0))
    left = 1 - 3 * (1 - MOST)  # of the second that the last one lasts, after three beside coding
    np.testing.assert_allclose(got, [3 + MOST * 0.5, 3 + MOST, 3.0, 5 + left])


@given(
    own=st.floats(0.1, 10),
    gaps=st.lists(st.tuples(st.floats(0.1, 3), st.floats(0.1, 3)), max_size=6),
    cores=st.sampled_from([2, 6, 8]),
)
def test_processor_time_is_conserved(own, gaps, cores):
    """Until its end an exchange had all the processor's time, but for what coding took of it."""
    found, share, at = crowd(cores), {2: MOST, 6: 0.5, 8: 0.0}[cores], 0.0
    spans = []
    for gap, length in gaps:
        spans.append((at + gap, at + gap + length))
        at += gap + length
        found.coded(*(np.full(4, t) for t in spans[-1]))
    start = 1.0
    end = found.stretched(np.full(4, start), np.full(4, start + own))[0]
    coded = sum(max(min(last, end) - max(first, start), 0.0) for first, last in spans)
    assert end - start - share * coded == pytest.approx(own, rel=1e-9)


def test_coding_of_both_directions_takes_nearly_as_long_as_one_after_the_other():
    found = crowd(2)
    first = found.coded(np.full(4, 0.0), np.full(4, 3.0))
    second = found.coded(np.full(4, 1.0), np.full(4, 3.0))
    np.testing.assert_allclose([first, second], [[3.0] * 4, [5.0 - 2 * (1 - MOST)] * 4])


def test_a_short_exchange_does_not_wait_for_all_the_coding_beside_it():
    found = crowd(2)
    for at in range(10):
        found.coded(np.full(4, float(at)), np.full(4, at + 1.0))
    got = found.stretched(np.full(4, 0.0), np.full(4, 0.1))
    np.testing.assert_allclose(got, 0.1 / (1 - MOST))


def test_no_rank_ends_earlier_on_fewer_cores():
    net = graph([200_000] * 5, seconds=1e-4)
    ends = []
    for cores in (0, 8, 5, 2, 1):
        made = plan(net, replace(machine(1, 4), cores=cores), ["ring+fp16", "direct+dense"])
        ends.append(simulate(made, 3).timeline().end.max())
    assert ends == sorted(ends)
    assert ends[-1] > ends[0]


def test_an_exchange_between_nodes_lacks_what_coding_takes_once_its_last_rank_has_come():
    """Whatever a rank codes while it waits for others costs nothing, however late these are."""
    net = graph([400_000] * 6, seconds=3e-4)
    lasts = []
    on = replace(machine(2, 2), jitter=0.8, native=((1.0, 8e-3), (1e7, 8e-3)))
    for cores in (0, 1):
        made = plan(net, replace(on, cores=cores), ["native+dense"])
        t = simulate(made, 3).timeline()
        coding = np.isin(t.stream, [t.streams.index("encode"), t.streams.index("decode")])
        for step in range(3):
            for name in (n for n in t.names if n.endswith("/exchange")):
                spans = np.flatnonzero((t.step == step) & (t.name == t.names.index(name)))
                latest = t.start[spans].max()
                for i in spans:
                    beside = coding & (t.rank == t.rank[i])
                    first = np.maximum(t.start[beside], latest)
                    coded = np.maximum(np.minimum(t.end[beside], t.end[i]) - first, 0.0).sum()
                    lasts.append((cores, t.end[i] - latest, coded, latest - t.start[i]))
    cores, last, coded, waited = np.array(lasts).T
    alone = last[0]
    np.testing.assert_allclose(last[cores == 0], alone)
    crowded = cores == 1
    assert (last[crowded] >= alone - 1e-12).all()
    assert (last[crowded] <= alone + MOST * coded[crowded] + 1e-12).all()
    assert last[crowded].max() > 1.02 * alone
    assert waited[crowded].max() > alone


SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=6)


@given(coding=SPANS, exchanges=SPANS, slowed=st.sampled_from([1.0, 1.5, 3.0]))
def test_coding_is_slowed_for_as_long_as_any_exchange_of_its_rank_lies_beside_it(
    coding, exchanges, slowed
):
    def spans(pairs):
        start, length = np.array(pairs, float).T
        return Spans(np.stack([start, start], 1), np.stack([start + length, start + length], 1))

    busy = {tick for start, length in exchanges for tick in range(start, start + length)}
    got = longer(spans(coding), spans(exchanges), slowed)
    for (start, length), times in zip(coding, got, strict=True):
        beside = len(busy & set(range(start, start + length)))
        assert times == pytest.approx(1 + (slowed - 1) * beside / length)


@pytest.mark.parametrize("slowed", [1.0, 1.6, 2.5])
def test_the_exercise_finds_how_much_exchanges_slow_coding(slowed):
    row = exercise.row(replace(machine(2, 2), slowed=slowed), 2.0)
    assert exercise.slowed(exercise.simulated(row)) == pytest.approx(slowed, rel=0.05)


def test_exchanges_slow_only_the_coding_beside_them():
    net, lengths = graph([400_000] * 6, seconds=1e-3), []
    for slowed in (1.0, 2.0):
        t = simulate(plan(net, replace(machine(2, 2), slowed=slowed), ["ring+fp16"])).timeline()
        coding = np.isin(t.stream, [t.streams.index("encode"), t.streams.index("decode")])
        lengths.append((t.end - t.start)[coding])
    before, after = lengths
    assert after[0] == before[0]  # the first encode has no exchange beside it
    assert (after >= before).all()
    assert before.sum() < after.sum() < 2 * before.sum()


def test_who_codes_alone_in_an_exchange_is_slowed_by_those_who_poll():
    rate = CodecRate(encode=1e-8, add=1e-8, decode=1e-8)
    on = machine(1, 4)
    on = replace(on, device=replace(on.device, codecs={"fp16": rate}))

    def seconds(**changes: float) -> float:
        made = replace(on, **changes)
        spec = BucketSpec.uniform(100_000)
        return price(find_method("tree+fp16"), spec, made, made.everyone).exchange

    lasts = [seconds(alone=0.5, slowed=slowed) for slowed in (1.0, 1.5, 2.0, 9.0)]
    assert lasts[0] < lasts[1] < lasts[2] == lasts[3] == seconds(slowed=9.0)


@given(
    alone=st.floats(0, 10), busy=st.floats(-5, 20), overlap=st.sampled_from([0.0, 0.25, 0.8, 1.0])
)
def test_a_share_of_an_exchange_moves_on_while_its_rank_computes(alone, busy, overlap):
    start, end = np.array([1.0]), np.array([1.0 + alone])
    [got] = under_compute(start, end, np.array([1.0 + busy]), overlap)
    covered = min(max(busy, 0.0), got - 1.0)
    moved = overlap * covered + (got - 1.0 - covered)
    assert got >= end[0]
    assert moved == pytest.approx(end[0] - 1.0, rel=1e-9, abs=1e-12)


def test_polling_that_hides_less_makes_steps_longer():
    net = graph([500_000] * 4, seconds=1e-3)
    ends = []
    for overlap in (1.0, 0.9, 0.5):
        made = plan(net, replace(machine(2, 2), overlap=overlap), ["ring+dense"])
        ends.append(simulate(made, 3).timeline().end.max())
    assert ends[0] < ends[1] < ends[2]
