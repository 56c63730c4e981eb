"""What an Exchanger refuses, with one sentence on all ranks."""

from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI

from commsched.machine.model import resized
from commsched.planner.method_schedule import scheduled
from commsched.run.exchanger import Exchanger
from tests.support.ranks import WORLD
from tests.support.tiny_exchange import (
    BACKWARD,
    equal,
    gradients,
    make_plan,
    one_step,
    refused,
)


@pytest.fixture
def exchanger():
    with Exchanger(make_plan(), WORLD) as made:
        yield made


def test_what_is_no_gradient_of_this_net_is_refused(exchanger):
    good = gradients(0, WORLD.rank)
    refused(
        lambda: exchanger.ready("x", good["a"]), "no tensor named 'x' in net 'tiny'", "known: e"
    )
    refused(lambda: exchanger.wait("x"), "no tensor named 'x' in net 'tiny'")
    refused(lambda: exchanger.ready(["a"], good["a"]), "no tensor named ['a'] in net 'tiny'")
    hidden = np.ma.masked_array(good["b"], mask=True)
    refused(lambda: exchanger.ready("b", hidden), "'b': a gradient is a NumPy array, got numpy.ma")
    refused(lambda: exchanger.ready("b", [0.0] * 7), "'b': a gradient is a NumPy array, got list")
    refused(lambda: exchanger.ready("b", np.zeros(7)), "'b': a gradient is float32, got float64")
    refused(lambda: exchanger.ready("a", good["a"].T), "'a'", "must be [3, 5], got [5, 3]")
    refused(lambda: exchanger.ready("a", good["a"].ravel()), "'a'", "must be [3, 5], got [15]")
    equal(one_step(exchanger, 0, 0), gradients(0, 0))  # nothing of that has left a trace


def test_a_step_out_of_order_is_refused(exchanger):
    good = gradients(0, 0)
    refused(lambda: exchanger.wait("a"), "step 0: tensor 'a' was waited for before it was handed")
    exchanger.ready("d", good["d"])
    refused(lambda: exchanger.ready("d", good["d"]), "'d' was handed over twice; 'e' is still")
    refused(lambda: exchanger.wait("a"), "step 0: tensor 'a' was waited for before it was handed")
    refused(lambda: exchanger.wait("d"), "'d' was waited for before 'e' was handed over")
    for name in "ecba":
        exchanger.ready(name, good[name])
    early = exchanger.wait("e").copy()
    refused(lambda: exchanger.ready("e", good["e"]), "step 0: tensor 'c' was not waited for")
    equal({name: exchanger.wait(name) for name in BACKWARD[1:]} | {"e": early}, good)
    refused(lambda: exchanger.wait("a"), "step 1: tensor 'a' was waited for before it was handed")
    refused(lambda: (exchanger.ready("e", good["e"]), exchanger.wait("a")), "step 1: tensor 'a'")


def test_outside_of_its_block_it_is_refused():
    exchanger = Exchanger(make_plan(), WORLD)
    refused(lambda: exchanger.wait("a"), "inside a with block")
    with exchanger:
        one_step(exchanger, 0, WORLD.rank)
        refused(exchanger.__enter__, "works in one with block only")
    refused(lambda: exchanger.ready("a", gradients(0, 0)["a"]), "inside a with block")
    refused(exchanger.__enter__, "works in one with block only")


def test_plans_that_do_not_fit_are_refused_on_all_ranks(tmp_path):
    plan, size = make_plan(), WORLD.size
    more = replace(plan, machine=resized(plan.machine, 1, size + 1))
    refused(lambda: Exchanger(more, WORLD), f"for {size + 1} ranks, but {size} were started")
    changed = replace(plan, launches=plan.launches[1:])
    refused(lambda: Exchanger(changed, WORLD), "tensor 'e': element 0 is exchanged never")
    partly = replace(plan.launches[0], group=tuple(range(size)))
    part = replace(more, launches=(partly, *plan.launches[1:]))
    refused(lambda: Exchanger(part, WORLD), f"'b0' exchanges among {size} of {size + 1} ranks")
    refused(lambda: Exchanger(tmp_path / "no.json", WORLD), "no.json")
    if size > 1:
        other = make_plan(seed=WORLD.rank)
        refused(lambda: Exchanger(other, WORLD), "the ranks differ in the plan")
        where = tmp_path / "t.json" if WORLD.rank else None
        refused(lambda: Exchanger(plan, WORLD, timeline=where), "timeline=FILE on all ranks, or")
        refused(lambda: Exchanger(plan, WORLD, record=where), "record=FILE on all ranks, or")
        replan = (lambda *_: plan) if WORLD.rank == 0 else None
        refused(lambda: Exchanger(plan, WORLD, replan=replan), "the ranks differ in replan")


def test_a_plan_that_changes_its_methods_is_not_planned_anew():
    plan = scheduled(make_plan(), {2: "ring+bf16"}, refresh=0)
    words = "uses --first or --later"
    refused(lambda: Exchanger(plan, WORLD, replan=lambda *_: plan), "replan=", words)


def test_a_plan_whose_unsent_gradients_nobody_takes_over_is_not_left():
    plan = make_plan(methods=["all-gather+dgc:0.5"])
    words = "unsent gradients no other plan can take over"
    refused(lambda: Exchanger(plan, WORLD, replan=lambda *_: plan), "replan=", words)
    refused(
        lambda: scheduled(plan, {1: "ring+dense"}, refresh=0),
        "--later",
        words,
    )
    with Exchanger(plan, WORLD) as exchanger:
        one_step(exchanger, 0, WORLD.rank)
        refused(lambda: exchanger.follow(make_plan(), "test"), words)


def test_a_plan_of_another_net_is_not_followed():
    plan = make_plan()
    first, *rest = plan.net.layers
    tensor, *others = first.tensors
    shaped = replace(first, tensors=(replace(tensor, shape=tensor.shape[::-1]), *others))
    with Exchanger(plan, WORLD) as exchanger:
        one_step(exchanger, 0, WORLD.rank)
        for layer in (shaped, replace(first, name="other")):
            layers = (layer, *(replace(each, after=()) for each in rest))
            net = replace(plan.net, name="large", layers=layers)
            after = tuple(
                replace(x, after=layer.name) if x.after == first.name else x for x in plan.launches
            )
            other = replace(plan, net=net, launches=after)
            refused(lambda o=other: exchanger.follow(o, "test"), "net 'large', which has other")
        one_step(exchanger, 1, WORLD.rank)


def test_arguments_that_do_not_fit_are_refused(tmp_path):
    plan = make_plan()
    refused(lambda: Exchanger(plan, None), "must be an mpi4py Intracomm", "got NoneType")
    refused(lambda: Exchanger(plan, MPI.COMM_NULL), "got COMM_NULL")
    for timeout in (0, -1.0, float("nan")):
        refused(lambda t=timeout: Exchanger(plan, WORLD, timeout=t), "timeout must be more than 0")
    nowhere = tmp_path / "missing" / "t.json"
    refused(lambda: Exchanger(plan, WORLD, timeline=nowhere), "cannot be written there")
    refused(lambda: Exchanger(plan, WORLD, record=nowhere), "cannot be written there")
