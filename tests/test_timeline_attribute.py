"""Why a prediction was wrong: parts that sum to the whole, and land where the fault was made."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from commsched.errors import CommschedError
from commsched.machine.model import CodecRate
from commsched.simulate.engine import simulate
from commsched.timeline import measure
from commsched.timeline.attribute import attribute, central
from commsched.timeline.breakdown import makeup
from commsched.timeline.chain import Walk
from commsched.timeline.compare import compare
from commsched.timeline.header import Predicted, RunHeader, header_from_data
from commsched.timeline.model import Span, Timeline
from commsched.timeline.report import comparison_table
from tests.support import sampling
from tests.support.small_plans import graph, machine, plan

STREAMS = ("compute", "encode", "inside", "between", "decode")
NBYTES = (4e4, 1e6, 3e6, 8e5)  # of the buckets, in the order of their gradients
RANKS, STEPS = 4, 4


@dataclass(frozen=True)
class Fault:
    """What a run does otherwise than the prediction says; seconds."""

    compute: float = 1.0  # factor on compute
    constant: float = 0.0  # more for every exchange
    per_byte: float = 1e-9
    encode: float = 2e-4
    coded: float = 1e-4  # within an exchange
    late: float = 0.0  # that an exchange starts after its stream is free and its inputs are there
    delay: dict[int, float] = field(default_factory=dict)  # more compute of a rank, every step
    backward: float = 1e-3  # of each layer: shorter than the exchanges, or long enough to hide them


def run(fault=None, kind="measured", **changes):
    """A data-parallel run: backward, encode, exchange and decode per bucket, all applied next."""
    fault = replace(fault or Fault(), **changes)
    spans, free = [], {}
    ended = np.zeros(RANKS)  # of the last decode
    after = {}

    def put(stream, name, step, ready, seconds, waited=0.0, nbytes=0, coded=0.0):
        start = np.maximum(ready, free.get(stream, 0.0))
        free[stream] = end = start + seconds
        columns = np.broadcast_arrays(start, end, waited, nbytes, coded)
        for rank, (a, b, w, m, c) in enumerate(np.transpose(columns).tolist()):
            spans.append((rank, stream, name, step, a, b, w, int(m), c))
        return end

    for step in range(STEPS):
        more = np.array([fault.delay.get(rank, 0.0) for rank in range(RANKS)])
        put("compute", "apply", step, ended, 1e-4)
        for number, nbytes in enumerate(NBYTES):
            name, layer = f"b{number}", f"backward/{number}"
            grad = put("compute", layer, step, 0.0, fault.backward * fault.compute + more)
            more = np.zeros(RANKS)
            coded = put("encode", f"{name}/encode", step, grad, fault.encode)
            begins = np.maximum(coded, free.get("inside", 0.0)) + fault.late
            seconds = 3e-4 + fault.constant + fault.per_byte * nbytes + fault.coded
            done = put(
                "inside",
                f"{name}/exchange",
                step,
                begins,
                begins.max() - begins + seconds,
                begins.max() - begins,
                nbytes,
                fault.coded,
            )
            ended = put("decode", f"{name}/decode", step, done, 1e-4)
            after[f"{name}/encode"] = [(layer, 0)]
            after[f"{name}/exchange"] = [(f"{name}/encode", 0)]
            after[f"{name}/decode"] = [(f"{name}/exchange", 0)]
    after["apply"] = [(f"b{len(NBYTES) - 1}/decode", 1)]
    exchanges = {f"b{i}/exchange": (300.0, n * 1e-3) for i, n in enumerate(NBYTES)}
    known = {"after": after, "exchanges": exchanges} if kind == "predicted" else {}
    return Timeline.of(
        [Span(*row) for row in spans],
        header=header_from_data(kind, known),
        plan_hash="h",
        ranks=RANKS,
        streams=STREAMS,
    )


def whole(predicted, measured):
    sides = [measure.iteration_seconds(t)[measure.settled(t)] for t in (predicted, measured)]
    return float(np.median(sides[0]) - np.median(sides[1]))


moments = st.floats(0, 10, allow_subnormal=False)
rows = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(STREAMS),
        st.sampled_from(["a", "b/encode", "b/exchange", "c/exchange", "d"]),
        st.integers(0, 3),
        moments,
        moments,
        st.floats(0, 1),
        st.integers(0, 1000),
        st.floats(0, 1),
    ),
    min_size=1,
    max_size=40,
    unique_by=lambda row: (row[0], row[2], row[3]),
)
inputs = st.dictionaries(
    st.sampled_from(["a", "b/encode", "b/exchange", "c/exchange"]),
    st.lists(st.tuples(st.sampled_from(["a", "b/encode", "b/exchange", "d"]), st.integers(0, 1))),
)


@st.composite
def timelines(draw):
    """Any timeline of three ranks, and maybe what a prediction knows."""
    found = [
        Span(r, s, n, k, a, a + d, w * d, b, c * d) for r, s, n, k, a, d, w, b, c in draw(rows)
    ]
    if draw(st.integers(0, 3)):  # mostly a rank that has all steps
        begins = draw(st.lists(moments, min_size=4, max_size=4))
        found += [Span(0, "compute", "base", k, a, a + 1, 0, 0) for k, a in enumerate(begins)]
    meta = {}
    if draw(st.booleans()):
        meta["after"] = draw(inputs)
    if draw(st.booleans()):
        meta["exchanges"] = {
            n: (draw(moments), draw(moments)) for n in ("b/exchange", "c/exchange")
        }
    header = header_from_data("predicted", meta)
    return Timeline.of(found, header=header, plan_hash="h", ranks=3, streams=STREAMS)


# laws


@settings(max_examples=sampling.examples(300))
@given(predicted=timelines(), measured=timelines(), skip=st.integers(0, 2))
def test_the_parts_sum_to_the_whole(predicted, measured, skip):
    why = attribute(predicted, measured, skip)
    assume(why is not None)
    c = compare(predicted, measured, skip)
    longest = max(t.end.max() - t.start.min() for t in (predicted, measured))
    assert abs(sum(why.total.values()) - c.iteration.difference) <= 1e-12 * max(longest, 1.0)
    assert np.isfinite(why.values).all()


@given(t=timelines(), skip=st.integers(0, 2))
def test_a_timeline_differs_from_itself_in_no_part(t, skip):
    why = attribute(t, t, skip)
    assume(why is not None)
    np.testing.assert_array_equal(why.values, 0.0)


@given(t=timelines(), known=st.booleans(), coded=st.booleans())
def test_a_span_is_the_sum_of_what_it_is_made_of(t, known, coded):
    parts = makeup(t, t.header.exchanges if known else {}, coded)
    np.testing.assert_allclose(parts.sum(axis=1), t.end - t.start, rtol=1e-12, atol=1e-15)
    assert (parts >= -1e-15).all()


@given(seconds=st.lists(st.floats(0, 1e3), min_size=1, max_size=20))
def test_the_weighted_mean_of_the_central_steps_is_the_median(seconds):
    weights = central(np.array(seconds))
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    assert weights @ seconds == pytest.approx(np.median(seconds), rel=0, abs=1e-12 * max(seconds))
    assert (weights > 0).sum() <= max(len(seconds) - 2 * (len(seconds) // 4), 1)


@given(t=timelines(), rank=st.integers(0, 2))
def test_a_chain_goes_forward_in_the_order_of_ends(t, rank):
    assume((t.rank == rank).any())
    walk = Walk(t, rank, t.header.after)
    for i in range(len(walk.rows)):
        assert walk.before(i) < i
    found = walk.chain(0.0, float(t.end.max()), -1)
    assert found == sorted(set(found))


# what was done wrong is what is found

EXPOSED = Fault()  # exchanges are longer than backward: the iteration waits for them
HIDDEN = Fault(backward=3e-3)  # all but the last exchange hide under backward

FAULTS = {
    "bandwidth": {"per_byte": 2e-9},
    "latency": {"constant": 5e-4},
    "compute drift": {"compute": 1.2},
    "codec": {"encode": 2e-3, "coded": 6e-4},
    "lost overlap": {"late": 4e-4},
    "stragglers": {"delay": {1: 2e-3}},
}


@pytest.mark.parametrize("before", [EXPOSED, HIDDEN], ids=["exposed", "hidden"])
@pytest.mark.parametrize("backwards", [False, True], ids=["slower", "faster"])
@pytest.mark.parametrize("cause", FAULTS)
def test_a_fault_lands_in_its_part(cause, backwards, before):
    """At least 90 % of the difference, also where a part of the fault was hidden."""
    good, bad = before, replace(before, **FAULTS[cause])
    predicted, measured = (bad, good) if backwards else (good, bad)
    predicted, measured = run(predicted, "predicted"), run(measured)
    why = attribute(predicted, measured)
    error = whole(predicted, measured)
    assert abs(error) > 2e-5
    assert why.total[cause] / error >= 0.9
    assert sum(abs(v) for v in why.total.values()) <= 1.2 * abs(error)
    assert why.along == ("predicted" if backwards else "measured")


@pytest.mark.parametrize("cause", ["bandwidth", "latency"])
def test_latency_and_bandwidth_are_told_apart_without_a_models_word(cause):
    predicted, measured = run(kind="predicted"), run(**FAULTS[cause])
    after = Predicted(after=predicted.header.after)
    why = attribute(replace(predicted, header=after), measured)
    assert why.total[cause] / whole(predicted, measured) >= 0.9


def test_a_chain_is_found_without_a_models_word():
    predicted, measured = run(), run(**FAULTS["bandwidth"])
    why = attribute(predicted, measured)
    assert why.total["bandwidth"] / whole(predicted, measured) >= 0.9


def test_two_faults_are_two_parts():
    predicted, measured = run(kind="predicted"), run(compute=1.1, per_byte=3e-9)
    alone = [run(compute=1.1), run(per_byte=3e-9)]
    why = attribute(predicted, measured).total
    together = why["compute drift"] + why["bandwidth"]
    assert together == pytest.approx(whole(predicted, measured), rel=0.05)
    assert abs(why["bandwidth"]) > abs(why["compute drift"]) > 0
    assert abs(whole(predicted, alone[1])) > abs(whole(predicted, alone[0]))


def test_the_operation_that_was_slow_is_named():
    predicted, measured = run(kind="predicted"), run()
    slow = (measured.name == measured.names.index("b2/exchange")) & (measured.step == 2)
    later = measured.start >= measured.end[slow].max() - 1e-12
    start = measured.start + np.where(later, 4e-3, 0.0)
    end = measured.end + np.where(later | slow, 4e-3, 0.0)
    last = replace(measured, start=start, end=end).select(measured.step >= 2)
    why = attribute(predicted.select(predicted.step >= 2), last)
    worst = int(np.abs(why.values.sum(axis=1)).argmax())
    assert why.names[worst] == "b2/exchange"


def test_what_only_one_side_does_counts_in_full():
    predicted, measured = run(kind="predicted"), run()
    gone = predicted.name == predicted.names.index("b3/decode")
    why = attribute(predicted.select(~gone), measured)
    assert abs(sum(why.total.values()) - whole(predicted.select(~gone), measured)) < 1e-12


def test_without_a_common_rank_it_is_said():
    t = run(kind="predicted")
    a, b = t.select(t.rank < 2), t.select(t.rank >= 2)
    assert attribute(a, b) is None
    text = comparison_table(compare(a, b))
    assert "cannot be split: no rank has all compared steps on both sides" in text


def test_a_wrong_word_of_a_model_is_refused():
    t = run(kind="predicted")
    for key, value, complaint in [
        ("after", {"a": ["b"]}, r"meta of the predicted timeline: expected `array`"),
        ("exchanges", {"a": [-1, 2]}, r"expected `float` >= 0"),
        ("residuals", [-1.0], r"expected `float` > -1"),
    ]:
        with pytest.raises(CommschedError, match=complaint):
            header_from_data("predicted", t.header.to_data() | {key: value})


# the simulator's own word


def _predicted(on, factor=1.0):
    net = graph([200_000, 30_000, 400_000, 9_000], 4e-4 * factor)
    made = plan(net, on, ["ring+fp16"], bucket=1e5)
    return replace(simulate(made, 4).timeline(), plan_hash="h")


def _as_measured(t):
    return replace(t, header=RunHeader())


def _changed(on, **changes):
    rate = changes.pop("rate", 1e-10)
    codecs = {"fp16": CodecRate(encode=rate, add=rate, decode=rate)}
    between, inside = replace(on.between, **changes), replace(on.inside, **changes)
    return replace(on, between=between, inside=inside, device=replace(on.device, codecs=codecs))


@pytest.mark.parametrize(
    ("cause", "changes"),
    [
        ("bandwidth", {"per_byte": 16e-9}),
        ("latency", {"latency": 300e-6}),
        ("codec", {"rate": 2e-9}),
    ],
)
def test_a_changed_machine_is_found_between_two_simulations(cause, changes):
    on = _changed(machine(2, 2), per_byte=8e-9, latency=10e-6)
    predicted, measured = _predicted(on), _as_measured(_predicted(_changed(on, **changes)))
    why = attribute(predicted, measured)
    assert why.total[cause] / whole(predicted, measured) >= 0.9


def test_slower_layers_are_found_between_two_simulations():
    on = machine(2, 2)
    predicted, measured = _predicted(on), _as_measured(_predicted(on, 1.5))
    why = attribute(predicted, measured)
    assert why.total["compute drift"] / whole(predicted, measured) >= 0.9
