"""How sure a prediction is, what is refused, and what files keep of coding."""

import json
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.cli.main import main
from commsched.cost import price
from commsched.errors import CommschedError
from commsched.exchange.registry import METHODS, phases_of
from commsched.simulate.breakdown import makeups
from commsched.simulate.engine import simulate
from commsched.timeline import parts
from commsched.timeline.attribute import attribute
from commsched.timeline.compare import compare
from commsched.timeline.cycles import totals
from commsched.timeline.file import read, write
from commsched.timeline.header import Predicted, RunHeader, header_from_data
from commsched.timeline.measure import communicates
from commsched.timeline.model import Span, Timeline
from commsched.timeline.report import comparison_table, rivals_data, rivals_table
from commsched.timeline.spread import Interval, interval, rivals
from commsched.timeline.totals import p10_to_p90
from tests.support import sample_methods
from tests.support.small_plans import graph, machine, plan


def steps(*seconds, kind="predicted", plan_hash="h", exchange=0.01, exposed=0.0, **meta):
    """One rank whose steps last so long, with an exchange of 10 ms in each; one more ends them.

    exposed: the share of a step in which the rank only exchanges.
    """
    starts = np.concatenate([[0.0], np.cumsum([*seconds, 1.0])])
    spans = []
    for step, (a, b) in enumerate(pairwise(starts)):
        computed = max(a, b - exposed * (b - a))
        spans.append(Span(0, "compute", "f", step, a, computed, 0.0, 0))
        start = computed if exposed else b - exchange
        spans.append(Span(0, "inside", "b/exchange", step, start, b, 0.0, 8))
    header = header_from_data(kind, meta)
    return Timeline.of(spans, header=header, plan_hash=plan_hash, ranks=1)


# intervals


@given(
    seconds=st.lists(st.floats(0.1, 10), min_size=2, max_size=9),
    errors=st.lists(st.floats(-0.5, 2), max_size=9),
    exposed=st.sampled_from([0.0, 0.25, 1.0]),
)
def test_an_interval_is_what_brute_force_counts(seconds, errors, exposed):
    """Errors of exchanges are errors of what an iteration waits, and of what computing hides."""
    took = totals(steps(*seconds, exposed=exposed))
    found = interval(took, errors)
    settled = np.diff(np.concatenate([[0.0], np.cumsum(seconds)]))[1:]
    every = [
        (s, h, 1 / (1 + e))
        for s, h in zip(settled, took.hidden, strict=True)
        for e in errors or [0.0]
    ]
    values = [s + exposed * s * (f - 1) + h * max(f - 1, 0) for s, h, f in every]
    n = len(errors)
    share = max(0.0, ((n + 1) / 10 - 1 / 2) / n) if n else 0.1
    limits = np.quantile(values, (share, 1 - share), method="hazen" if n else "linear")
    assert (found.low, found.high) == pytest.approx(tuple(limits), rel=1e-9)
    assert found.residuals == n


@pytest.mark.parametrize("count", [9, 14, 29])
def test_the_next_error_is_within_the_interval_in_eight_of_ten_cases(count):
    """Of errors drawn from one law: the quantiles of the known ones hold it less often."""
    drawn = np.random.default_rng(count).standard_exponential((4000, count + 1))
    inside, named = [], []
    for *errors, following in drawn.tolist():
        low, high = p10_to_p90(np.array(errors), count)
        inside.append(low <= following <= high)
        low, high = np.quantile(errors, (0.1, 0.9))
        named.append(low <= following <= high)
    assert np.mean(inside) == pytest.approx(0.8, abs=0.02)
    assert np.mean(named) < np.mean(inside)


def test_residuals_say_where_the_measured_iteration_may_lie():
    """A calibration whose predictions were 10 % too low expects longer iterations."""
    found = interval(totals(steps(1.0, 1.0, 1.0, exposed=1.0)), [-0.1] * 5)
    assert found.low == found.high == pytest.approx(1 / 0.9)
    alone = comparison_table(compare(steps(1.0, 1.0, 1.2), steps(1.0, 1.1, 1.1, kind="measured")))
    assert "the spread of the steps only: the machine file has no held-out errors" in alone
    assert "holds the measured iteration" in alone
    predicted = steps(1.0, 1.0, residuals=[0.0, 0.1])
    both = comparison_table(compare(predicted, steps(1.0, 2.0, kind="measured")))
    assert "the spread of the steps and 2 held-out errors of calibration" in both
    assert "does not hold the measured iteration" in both


@given(
    a=st.tuples(st.floats(0, 9), st.floats(0, 9)).map(sorted),
    b=st.tuples(st.floats(0, 9), st.floats(0, 9)).map(sorted),
)
def test_overlap_is_symmetric_and_means_a_common_moment(a, b):
    one, two = (Interval(low=low, high=high, residuals=0) for low, high in (a, b))
    assert one.overlaps(two) == two.overlaps(one) == (max(a[0], b[0]) <= min(a[1], b[1]))
    assert one.overlaps(one)


# two plans

BOTH = {"net": "n", "machine": "m", "strategy": "sync"}


def test_plans_whose_intervals_overlap_are_indistinguishable():
    a = steps(1.0, 1.0, 1.2, plan_hash="a", **BOTH)
    b = steps(1.0, 1.1, 1.3, plan_hash="b", **BOTH)
    found = rivals(a, b)
    assert found.indistinguishable
    assert rivals_data(found)["indistinguishable"] is True
    assert "the plans are indistinguishable: their intervals, 1.02 s to 1.18 s" in rivals_table(
        found
    )
    faster = rivals(a, steps(1.0, 0.5, 0.5, plan_hash="b", **BOTH))
    assert not faster.indistinguishable
    assert faster.verdict.startswith("plan b is faster: its iteration is 54.5% shorter")
    many = steps(1.0, 1.5, 1.5, plan_hash="b", batches=2, **BOTH)  # and one of one rank
    by_batch = rivals(a, many)
    why = "a batch takes 31.8% less time (a step has 2 instead of 1)"
    assert by_batch.verdict == f"plan b is faster: {why}, and the intervals do not overlap"
    assert [one["batches"] for one in rivals_data(by_batch)["plans"]] == [1, 2]
    alike = rivals(a, steps(1.0, 2.2, 2.2, plan_hash="b", batches=2, **BOTH))
    assert alike.verdict.endswith(
        "intervals of a batch, 1.02 s to 1.18 s and 1.1 s to 1.1 s, overlap"
    )
    wide = {**BOTH, "residuals": [-0.5, 0.0, 1.5]}
    unsure = rivals(
        steps(1.0, 1.0, 1.2, plan_hash="a", exposed=1.0, **wide),
        steps(1.0, 0.5, 0.5, plan_hash="b", exposed=1.0, **wide),
    )
    assert unsure.indistinguishable
    assert "and 3 and 3 held-out errors of calibration" in rivals_table(unsure)


def test_plans_of_other_nets_or_machines_do_not_compare():
    a = steps(1.0, 1.0, plan_hash="a", **BOTH)
    for what in ("net", "machine"):
        b = steps(1.0, 1.0, plan_hash="b", **{**BOTH, what: "other"})
        with pytest.raises(CommschedError, match=f"different {what}s, '.' and 'other'"):
            rivals(a, b)
    a = steps(1.0, 0.5, 0.5, plan_hash="a", **BOTH)
    b = replace(steps(1.0, 0.5, 0.5, plan_hash="b", **BOTH), ranks=a.ranks + 1)
    with pytest.raises(CommschedError, match=f"numbers of ranks, {a.ranks} and {b.ranks}; two"):
        rivals(a, b)


def test_the_command_compares_two_plans(tmp_path, capsys):
    files = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    write(files[0], steps(1.0, 1.0, plan_hash="a", **BOTH))
    write(files[1], steps(1.0, 1.5, plan_hash="b", **BOTH))
    assert main(["compare", *files]) == 0
    assert "plan a is faster" in capsys.readouterr().out
    assert main(["compare", *files, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["indistinguishable"] is False
    assert main(["compare", *files, "--fail-above", "5%"]) == 2
    assert "--fail-above needs a measured timeline" in capsys.readouterr().err


def test_two_simulated_plans_compare(tmp_path):
    net, on = graph([200_000, 30_000], 1e-4), machine(2, 2)
    a, b = (simulate(plan(net, on, [m]), 3).timeline() for m in ("ring+dense", "ring+fp16"))
    assert rivals(a, b).verdict.startswith(f"plan {b.plan_hash[:12]} is faster")


# clocks


def test_clocks_worse_than_the_exchanges_leave_waiting_out(tmp_path, capsys):
    files = [str(tmp_path / "p.json"), str(tmp_path / "m.json")]
    write(files[0], steps(1.0, 1.0))
    good = steps(1.0, 1.0, kind="measured")

    def compared(clock_uncertainty, measured=good):
        write(files[1], replace(measured, clock_uncertainty=clock_uncertainty))
        assert main(["compare", *files, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    known, unknown = compared(0.009), compared(0.011)
    (warning,) = unknown["warnings"]
    assert "uncertain by 11 ms, more than the 10 ms that an exchange lasts (median)" in warning
    assert "run it again with less else on these hosts, or with larger buckets" in warning
    assert known["warnings"] == []
    assert known["why"]
    assert unknown["why"] is None
    for data in (known, unknown):  # all that needs no common clock is the same
        del data["why"], data["warnings"], data["clock_uncertainty_seconds"]
        for one in data["operations"]:
            del one["below_clock_uncertainty"]
            waited = one.pop("predicted_waited_seconds"), one.pop("measured_waited_seconds")
            assert waited == (0.0, 0.0 if data is known else None)
    assert known == unknown
    assert main(["compare", *files]) == 0
    said = capsys.readouterr().out
    assert "the error cannot be split: waiting is unknown" in said
    assert f"warning: {warning}" in said
    assert not compared(0.011, good.select(good.name == 0))["warnings"]  # nothing is exchanged


# files of runs that broke


def _leave_parts(path, t, ranks):
    for rank in ranks:
        header = parts.PartHeader(plan_hash=t.plan_hash, ranks=t.ranks, rank=rank, names=t.names)
        with closing(parts.PartWriter(path, header)) as part:
            part.append(t.select(t.rank == rank))


def test_the_command_reports_a_torn_and_a_missing_rank_and_compares_the_rest(tmp_path, capsys):
    one = list(steps(1.0, 1.0, 1.0, 1.0))
    spans = [span._replace(rank=rank) for rank in range(3) for span in one]
    t = Timeline.of(spans, header=RunHeader(), plan_hash="h", ranks=3)
    write(tmp_path / "p.json", replace(t, header=Predicted()))
    _leave_parts(tmp_path / "m.json", t, [0, 1])
    torn = parts.part_path(tmp_path / "m.json", 1)
    torn.write_bytes(torn.read_bytes()[:-5])
    assert main(["compare", str(tmp_path / "p.json"), str(tmp_path / "m.json")]) == 0
    said = capsys.readouterr().out
    assert "warning: rank 1: the last line of its part is torn and was left out" in said
    assert "warning: rank 2 of 3 left no spans" in said
    assert "b/exchange" in said
    assert main(["compare", *(str(tmp_path / n) for n in ("p.json", "m.json")), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert "of the 2 ranks that both files hold" in data["warnings"][0]
    assert len(data["warnings"]) == 4
    assert data["why"]["rank"] in (0, 1)


# coding inside exchanges


@given(shares=st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_files_and_parts_keep_what_was_coded(shares, tmp_path_factory):
    path = tmp_path_factory.mktemp("t") / "m.json"
    spans = [Span(0, "inside", f"b{i}", 0, i, i + 1, 0.0, 8, s) for i, s in enumerate(shares)]
    t = Timeline.of(spans, header=RunHeader(), plan_hash="h", ranks=1)
    write(path, t)
    np.testing.assert_allclose(read(path).coded, shares, rtol=0, atol=1e-9)
    again = path.with_name("again.json")
    write(again, read(path))
    assert again.read_bytes() == path.read_bytes()
    path.unlink()
    _leave_parts(path, t, [0])
    np.testing.assert_array_equal(read(path).coded, shares)


def test_files_and_parts_without_coding_read_as_none(tmp_path):
    t = steps(1.0, kind="measured")
    write(tmp_path / "m.json", t)
    assert "coded" not in (tmp_path / "m.json").read_text()
    np.testing.assert_array_equal(read(tmp_path / "m.json").coded, [0] * 4)
    old = parts.part_path(tmp_path / "old.json", 0)
    old.write_text('{"plan_hash":"h","ranks":1,"rank":0}\n["inside","b",0,0,1,0,8]\n')
    assert read(tmp_path / "old.json").coded.tolist() == [0.0]


def test_more_coding_than_time_is_refused(tmp_path):
    spans = [Span(0, "inside", "b", 0, 0.0, 1.0, 0.0, 8, 1.5)]
    with pytest.raises(CommschedError, match=r"coded 1.5 s, outside 0 and its own duration"):
        write(tmp_path / "m.json", Timeline.of(spans, header=RunHeader(), plan_hash="", ranks=1))


@pytest.mark.parametrize(
    "method", ["ring+fp16", "hierarchical+dense", "doubling+bf16", "native+dense"]
)
def test_what_an_exchange_is_made_of_sums_to_its_price(method):
    made = plan(graph([300_000, 500]), machine(2, 2), [method], bucket=1e5)
    found = simulate(made, 2)
    parts_of = makeups(made, (placed.op for placed in found.placed))
    assert parts_of
    for launch, (name, part) in enumerate(sorted(parts_of.items())):
        phase = phases_of(made, launch)[0]
        group = made.group(made.launches[launch])
        played = price.exchange(
            phase.schedule, phase.payload, made.machine, group, np.zeros(4), limit=0
        )
        assert name == f"{made.launches[launch].name}/exchange"
        assert sum(part) == pytest.approx(played.end.max(), rel=1e-9)
        assert part.latency > 0
        assert part.bandwidth > 0
        assert (part.coded > 0) == (method != "native+dense")
    t = found.timeline()
    assert t.header.exchanges.keys() == parts_of.keys()
    assert t.header.after["b0/decode"] == (("b0/exchange", 0),)
    assert t.coded.any() == (method != "native+dense")


@pytest.mark.parametrize("method", sample_methods.ALL, ids=lambda method: method.name)
def test_exchanges_of_several_phases_and_votes_are_made_of_something(method, monkeypatch):
    monkeypatch.setattr(METHODS, "_items", dict(METHODS.items()) | {method.name: method})
    made = plan(graph([3_000]), machine(2, 2), [method.name])
    t = simulate(made, 3).timeline()
    moved = {t.names[i] for i in np.unique(t.name[communicates(t)])}
    assert moved <= t.header.exchanges.keys()
    why = attribute(t, replace(t, header=RunHeader()))
    np.testing.assert_array_equal(why.values, 0.0)
