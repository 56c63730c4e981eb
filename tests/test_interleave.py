"""Interleaved 1F1B: bubble, memory and order of the papers, and the bits of stages in a row."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsched.errors import CommschedError
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.program.model import Kind
from commsched.program.registry import STRATEGIES
from commsched.train.in_process import InProcessTraining
from commsched.train.registry import DATA, NETS
from tests.support import sampling
from tests.support.learning_pipelines import STEPS, WORKERS, assert_same, crew, plan_of
from tests.support.learning_pipelines import settings as wanted
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


@settings(max_examples=sampling.examples(20))
@given(ranks=st.integers(2, 5), chunks=st.integers(2, 4), groups=st.integers(1, 3))
def test_interleaved_stages_divide_the_bubble_and_keep_what_the_papers_say(ranks, chunks, groups):
    """SC 2021, section 2.2: bubble / V; MLSys 2023: L (1 + (K - 1) / (K V)) of the activations."""
    made = staged(
        "1f1b",
        ranks,
        on=free(machine(1, ranks)),
        layers=ranks * chunks,
        microbatches=groups * ranks,
        interleave=chunks,
    )
    turn = chunks * (FORWARD + BACKWARD)  # of a microbatch on a rank
    found = makespan(without_launches(made))
    assert found == pytest.approx((groups * ranks + (ranks - 1) / chunks) * turn, rel=1e-9)
    kept = STRATEGIES["1f1b"].memory(made).activations / (chunks * 4000.0)
    most = min(groups * ranks, ranks * (1 + (ranks - 1) / (ranks * chunks)))
    assert kept == pytest.approx(most, rel=1e-12)


def test_a_golden_order_of_interleaved_stages():
    """Megatron-LM's, of the second of two ranks with two stages each: stage, microbatch."""
    made = staged("1f1b", 2, layers=4, microbatches=4, interleave=2)
    ops = STRATEGIES["1f1b"].lower(made, 0, {}).roles[1].ops
    names = [
        op.name.replace("orward/s", "").replace("ackward/s", "").replace("/m", ".") for op in ops
    ]
    turns = " ".join(n for n, op in zip(names, ops, strict=True) if op.kind is Kind.COMPUTE)
    assert (
        turns == "f1.0 f1.1 f3.0 b3.0 f3.1 b3.1 f1.2 b1.0 f1.3 b1.1 f3.2 b3.2 f3.3 b3.3 b1.2 b1.3"
    )


def test_a_gradient_is_summed_once_its_stage_is_done():
    """The second stage of a rank ends before the first: its exchange does not wait for that."""
    made = staged("1f1b", 2, 2, layers=4, microbatches=4, interleave=2)
    role = STRATEGIES["1f1b"].lower(made, 0, {}).roles[0]
    encoded = [(op.name, op.after[0].name) for op in role.ops if op.kind is Kind.ENCODE]
    assert encoded == [
        ("s2/b0/encode", "backward/s2/m3"),
        ("s0/b0/encode", "backward/s0/m3"),
    ]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"stages": 1},
            "interleave=2 needs a pipeline of two ranks or more; nearest: interleave=1",
        ),
        ({"stages": 3, "microbatches": 4}, "a multiple of 3 microbatches, .* got 4; nearest: 6"),
        ({"stages": 6, "microbatches": 6}, "12 stages cannot be made of the 8 layers"),
        (
            {"stages": 0, "microbatches": 7},
            "interleave=2: no number of ranks in a pipeline, two or",
        ),
        ({"interleave": 0}, "interleave cannot be 0; allowed: 1 to 1048576"),
    ],
    ids=str,
)
def test_stages_that_cannot_be_interleaved_are_refused(params, message):
    params = {"interleave": 2, "stages": 2} | params
    request = Request(net=net(8), machine=machine(1, 6), strategy="1f1b", params=params)
    with pytest.raises(CommschedError, match=message):
        make_plan(request)


def test_as_few_ranks_as_fit_have_interleaved_stages():
    params = {"interleave": 2, "microbatches": 6}
    request = Request(net=net(8), machine=machine(1, 6), strategy="1f1b", params=params)
    assert make_plan(request).params["stages"] == 2


INTERLEAVED = [("mlp:8:3", 2, 2, 2), ("gpt:8:1:2", 2, 2, 4), ("cnn:2", 2, 2, 2)]


@pytest.mark.by_day(1)
@pytest.mark.parametrize(("name", "depth", "chunks", "count"), INTERLEAVED)
def test_interleaved_stages_change_no_bit(name, depth, chunks, count):
    for replicas in (1, 2):
        one, many = (
            crew(name, plan_of(name, "1f1b", stages, replicas, microbatches=count, **more))
            for stages, more in ((1, {}), (depth, {"interleave": chunks, "recompute": 1}))
        )
        assert_same(many.train(range(STEPS)).values, one.train(range(STEPS)).values)
        assert many.losses == one.losses


def test_interleaved_stages_score_what_one_stage_does():
    """A rank takes the activations of its second stage from the last rank."""
    found = []
    for stages, chunks in ((1, 1), (2, 2)):
        plan, source = plan_of("mlp:8:3", "1f1b", stages, 2, interleave=chunks), DATA["digits"](0)
        ranks = InProcessTraining(NETS["mlp:8:3"], source, plan, wanted("1f1b"), WORKERS["1f1b"])
        ranks.step(0)
        found.append(ranks.evaluate())
    assert found[0].guesses == len(DATA["digits"](0).held_out)
    assert found[1] == found[0]
