"""An Exchanger of one rank: what it follows, keeps, records and refuses."""

import os
import shutil
import sys
import time
from copy import deepcopy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from mpi4py import MPI

from commsched.errors import CommschedError
from commsched.exchange import recorded_gradients as recorded
from commsched.machine.model import resized
from commsched.planner.make_plan import make_plan as make_a_plan
from commsched.planner.method_schedule import scheduled
from commsched.planner.request import Request
from commsched.run.exchanger import Exchanger
from commsched.run.job.clock import now
from commsched.timeline import file as timeline_file
from tests.support.tiny_exchange import BACKWARD, SHAPES, equal, gradients, make_plan, one_step

ALONE = MPI.COMM_SELF
TOPK = "all-gather+topk:0.2"


def alone(method, **changes):
    """A plan of one rank whose launches all have this method."""
    return replace(make_plan(ALONE, [method], mean=False), **changes)


@pytest.mark.parametrize("first", [0.0, 1e6])
@pytest.mark.parametrize("budget", [0.0, 0.01])
def test_the_budget_is_that_of_the_plan_which_is_followed(first, budget):
    with Exchanger(alone("ring+dense", max_error=first), ALONE) as exchanger:
        one_step(exchanger, 0, 0)
        exchanger.follow(alone(TOPK, max_error=budget), "test")
        for step in range(1, 6):
            one_step(exchanger, step, 0)
        stays = [launch.method == TOPK for launch in exchanger.plan.launches]
    assert stays == [budget == 0.0] * 4


@pytest.mark.parametrize("begin", [1, 4])
def test_what_was_not_sent_is_added_once_to_launches_that_others_replace_later(begin):
    plan = scheduled(alone("ring+dense"), {begin: "direct+dense"}, refresh=0)
    left = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    with Exchanger(alone(TOPK), ALONE) as exchanger:
        for step in range(6):
            sent = one_step(exchanger, step, 0)
            left = {name: left[name] + gradients(step, 0)[name] - sent[name] for name in SHAPES}
            if step == 1:
                exchanger.follow(plan, "test")
        carried = exchanger.kept()["carried"]
    equal(left, {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()})
    assert not carried


def with_rows(exchanger, step):
    """A step whose gradient of "e" is handed over as rows; the sums, all dense."""
    given = gradients(step, 0)
    for name in BACKWARD:
        exchanger.ready(name, (np.arange(6), given[name]) if name == "e" else given[name])
    found = {name: exchanger.wait(name) for name in exchanger.names}
    number, values = found["e"]
    found["e"] = np.zeros(SHAPES["e"], np.float32)
    found["e"][number] = values
    return {name: values.copy() for name, values in found.items()}


def test_a_state_right_after_another_plan_holds_what_joins_the_next_rows():
    lists = alone("ring+coo")
    with Exchanger(alone(TOPK), ALONE) as exchanger:
        one_step(exchanger, 0, 0)
        exchanger.follow(lists, "test")
        kept = deepcopy(exchanger.kept())
        want = with_rows(exchanger, 1)
    with Exchanger(lists, ALONE) as again:
        again.restore(kept)
        got = with_rows(again, 1)
    equal(got, want)


def test_gradients_of_steps_that_overflowed_are_not_recorded(tmp_path):
    plan, path = alone("ring+dense"), tmp_path / "g.npz"
    with Exchanger(plan, ALONE, record=path, skip_overflow=True) as exchanger:
        for step in range(8):
            for name, gradient in gradients(step, 0).items():
                exchanger.ready(name, gradient + np.float32(np.inf if step == 3 else 0))
            for name in exchanger.names:
                exchanger.wait(name)
    found = recorded.read(path, plan.net).gradients["a"]
    want = [gradients(step, 0)["a"].reshape(-1) for step in range(8) if step != 3]
    assert np.array_equal(found, want)


def test_a_state_does_not_change_and_can_be_restored_again():
    with Exchanger(alone(TOPK), ALONE) as exchanger:
        one_step(exchanger, 0, 0)
        kept = exchanger.kept()
        want = [one_step(exchanger, step, 0) for step in (1, 2)]
    got = []
    for _ in range(2):
        with Exchanger(alone(TOPK), ALONE) as again:
            again.restore(kept)
            got += [one_step(again, step, 0) for step in (1, 2)]
    for found, wanted in zip(got, want * 2, strict=True):
        equal(found, wanted)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"plan": None}, "the state lacks 'plan'; restore all that kept() returned"),
        ({"step": None}, "the state lacks 'step'; restore all that kept() returned"),
        ({"carried": None}, "the state lacks 'carried'; restore all that kept() returned"),
        ({"buckets": None}, "the checkpoint holds other buckets than this plan"),
        ({"step": -1}, "the state's step must be a whole number from 0 on, got -1"),
        ({"step": "1"}, "the state's step must be a whole number from 0 on, got '1'"),
        ({"rank": 1}, "the state is of rank 1, not of rank 0"),
        ({"plan": 16 * "0"}, "the state belongs to plan 000000000000..., not to "),
    ],
)
def test_what_is_no_state_of_this_plan_is_told_by_what_is_wrong_with_it(change, said):
    with Exchanger(alone(TOPK), ALONE) as exchanger:
        kept = {k: v for k, v in (exchanger.kept() | change).items() if v is not None}
        with pytest.raises(CommschedError) as refused:
            exchanger.restore(kept)
        exchanger.restore(exchanger.kept())
    assert str(refused.value).startswith(said)


def test_threads_switch_fast_while_one_exchanger_of_the_process_works_and_then_as_before():
    usual = sys.getswitchinterval()
    first, last = Exchanger(alone(TOPK), ALONE), Exchanger(alone(TOPK), ALONE)
    for change in (first.__enter__, last.__enter__, partial(first.__exit__, None, None, None)):
        change()
        assert sys.getswitchinterval() < usual
    last.__exit__(None, None, None)
    assert sys.getswitchinterval() == usual


def test_relative_files_are_those_of_the_folder_where_the_block_began(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    exchanger = Exchanger(alone("ring+dense"), ALONE, timeline="t.json", record="g.npz")
    with exchanger:
        one_step(exchanger, 0, 0)
        os.chdir("elsewhere")
        one_step(exchanger, 1, 0)
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere", "t.json", "g.npz"}


def test_without_a_step_there_is_no_timeline_and_the_one_before_stays(tmp_path, capfd):
    path = tmp_path / "t.json"
    path.write_text("of the run before")
    with Exchanger(alone("ring+dense"), ALONE, timeline=path):
        pass
    said = f"commsched: {path}: not written, because no step began and so there are no spans\n"
    assert capfd.readouterr().err == said
    assert [(one, one.read_text()) for one in tmp_path.iterdir()] == [(path, "of the run before")]


def left_without(folder, lost):
    """Leave a block whose timeline or record has lost its folder; what is there after that."""
    (folder / "gone").mkdir()
    paths = {what: folder / what for what in ("timeline", "record")}
    exchanger = Exchanger(alone("ring+dense"), ALONE, **paths | {lost: folder / "gone" / lost})
    exchanger.__enter__()
    one_step(exchanger, 0, 0)
    shutil.rmtree(folder / "gone")
    with pytest.raises(CommschedError, match=f"gone/{lost}"):
        exchanger.__exit__(None, None, None)
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(("lost", "other"), [("timeline", "record"), ("record", "timeline")])
def test_a_file_that_cannot_be_written_takes_no_other_along(tmp_path, lost, other):
    assert other in left_without(tmp_path, lost)


WRONG = {
    "printable": ("", 0.0, 0.0),
    "printable and": ("a\tb", 0.0, 0.0),
    "finite start": ("load", float("nan"), 0.0),
    "finite": ("load", 0.0, float("inf")),
    "an end not before it": ("load", 0.0, -1.0),
    "on the clock of time.perf_counter": ("load", time.time(), time.time()),
    "is there already": ("data", 0.0, 0.0),
}


def test_a_span_that_would_cost_the_timeline_is_refused_at_its_call(tmp_path):
    said = {}
    with Exchanger(alone("ring+dense"), ALONE, timeline=tmp_path / "t.json") as exchanger:
        one_step(exchanger, 0, 0)
        exchanger.add_span("data", np.float64(now()), np.float64(now()))  # no number of JSON's
        for words, (name, start, end) in WRONG.items():
            base = 0.0 if start > 1e9 else now()
            try:
                exchanger.add_span(name, base + start, base + end)
            except CommschedError as error:
                said[words] = str(error)
        exchanger.add_span("data", now(), now(), ahead=True)
        one_step(exchanger, 1, 0)
    assert said.keys() == WRONG.keys()
    assert all(f"step 0: span {WRONG[words][0]!r}: " in said[words] for words in said)
    assert all(words in said[words] for words in said)
    spans = timeline_file.read(tmp_path / "t.json")
    assert [(span.name, span.step) for span in spans if span.name == "data"] == [
        ("data", 0),
        ("data", 1),
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "has no tensor 'a' of net 'tiny'"),
        ({"a": np.zeros((3, 5), np.float32)}, r"of shape \[15\], got float32 of shape \[3, 5\]"),
        ({"a": np.zeros(3, np.float32)}, r"of shape \[15\], got float32 of shape \[3\]"),
        ({"a": np.zeros(15, np.float16)}, r"must be float32 of shape \[15\], got float16 of"),
    ],
)
@pytest.mark.parametrize("strategy", ["daso", "shadow"])
def test_parameters_that_do_not_fit_are_refused_at_the_start(strategy, given, said):
    tiny = alone("ring+dense")
    two = resized(tiny.machine, 2, 1)
    plan = make_a_plan(Request(net=tiny.net, machine=two, strategy=strategy, params={}))
    fitting = {
        name: np.zeros(tensor.numel, np.float32) for name, tensor in tiny.net.tensors.items()
    }
    whole = {name: values for name, values in fitting.items() if name != "a"}
    with pytest.raises(CommschedError, match=said):
        Exchanger(plan, ALONE, parameters=whole | given)
    with pytest.raises(CommschedError, match="for 2 ranks, but 1 were started"):
        Exchanger(plan, ALONE, parameters=fitting)
