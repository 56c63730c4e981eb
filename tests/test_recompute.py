"""Activations that are computed again: what it costs in time, and what it saves in memory."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsched.cli.plan_facts import stage_lines
from commsched.errors import CommschedError
from commsched.program.registry import STRATEGIES
from tests.support import sampling
from tests.support.pipeline_plans import (
    BACKWARD,
    FORWARD,
    free,
    makespan,
    net,
    staged,
    without_launches,
)
from tests.support.small_plans import machine

NAMES = ["gpipe", "1f1b", "samo"]


def in_flight(name: str, m: int, count: int) -> int:
    """Microbatches whose activations the rank that keeps most has."""
    return m if name == "gpipe" else min(m, count)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=sampling.examples(15))
@given(count=st.integers(1, 5), m=st.integers(1, 8), segments=st.integers(0, 3))
def test_every_backward_repeats_its_forward(name, count, m, segments):
    on = free(machine(1, count))
    pruned = {"pruned": 0.0} if name == "samo" else {}
    made = staged(name, count, on=on, microbatches=m, recompute=segments, **pruned)
    turn = FORWARD + BACKWARD + (FORWARD if segments else 0.0)
    assert makespan(without_launches(made)) == pytest.approx((m + count - 1) * turn, rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=sampling.examples(15))
@given(
    count=st.integers(2, 4),
    each=st.integers(1, 6),
    m=st.integers(1, 8),
    segments=st.integers(1, 8),
)
def test_inputs_of_segments_are_kept_and_one_segment_is_there_at_a_time(
    name, count, each, m, segments
):
    """Every layer keeps 4000 B, which also cross every cut; a segment has the layers' share."""
    params = {"layers": net(count * each), "microbatches": m, "recompute": segments}
    memory = STRATEGIES[name].memory(staged(name, count, **params))
    cut = min(segments, each)
    largest = 4000.0 * -(-each // cut)
    inner = in_flight(name, m, count) * 4000.0 * (cut - 1) + largest  # the net's input is not ours
    outer = in_flight(name, m, count if name != "1f1b" else count - 1) * 4000.0 * cut + largest
    first = name == "1f1b" and inner > outer  # the one stage that has a microbatch more
    assert memory.activations == (inner if first else outer)


@pytest.mark.parametrize("name", NAMES)
def test_the_state_stays_and_long_queues_need_less(name):
    layers = net(8, activation=1e6)
    whole, again = (
        STRATEGIES[name].memory(staged(name, 2, layers=layers, microbatches=6, recompute=r))
        for r in (0, 4)
    )
    assert again._replace(activations=0.0) == whole._replace(activations=0.0)
    assert whole.activations == in_flight(name, 6, 2) * 4e6
    # Of 1F1B's two stages the first keeps two microbatches, but of the net's input nothing.
    assert again.activations == {"gpipe": 25e6, "samo": 9e6, "1f1b": 7e6}[name]


def test_a_message_size_that_is_given_is_that_of_every_input():
    params = {"layers": net(6), "microbatches": 4, "message_bytes": 100.0, "recompute": 3}
    assert STRATEGIES["gpipe"].memory(staged("gpipe", 2, **params)).activations == 4 * 300 + 4000


def test_layers_that_are_read_far_behind_are_kept_at_every_cut():
    layers = list(net(4).layers)
    layers[3] = replace(layers[3], after=("l2", "l0"))  # a shortcut
    chain = replace(net(4), layers=tuple(layers))
    made = staged("gpipe", 1, layers=chain, microbatches=1, recompute=4)
    assert STRATEGIES["gpipe"].memory(made).activations == 4000 + 8000 + 8000 + 4000


@pytest.mark.parametrize("name", NAMES)
def test_the_stages_are_shown_with_what_they_repeat_and_keep(name):
    made = staged(name, 2, layers=net(4), recompute=2, microbatches=2)
    text = "\n".join(stage_lines(made))
    assert "recompute 2" in text
    row = next(line for line in text.splitlines() if line.strip().startswith("1 "))
    assert "6 ms" in row  # backward 4 ms, and the forward of 2 ms again
    assert row.rstrip().endswith("8 kB")


def test_what_recompute_cannot_be_is_refused():
    with pytest.raises(CommschedError, match="recompute cannot be -1; allowed: 0 to 1048576"):
        staged("gpipe", 2, recompute=-1)
    with pytest.raises(CommschedError, match="strategy 'local' has no parameter 'recompute'"):
        staged("local", 2, recompute=1)
