"""What commsched.torch refuses on two ranks, in the job of tests/support/torch_job.py."""

import torch
from torch import nn

from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.torch import DataParallel, attach
from tests.support.small_plans import machine
from tests.support.torch_checks import WORLD, by_mpi, check, said, same, train, with_sync
from tests.support.torch_nets import batch, loss_of, make, net_of, plan_of


@check
def parameters_in_another_order_on_one_rank_are_found_by_name():
    model = make("mlp", WORLD.rank)
    plan = plan_of(model, WORLD.size)
    if WORLD.rank:
        model = nn.Sequential()
        for name, module in reversed(list(make("mlp", WORLD.rank).named_children())):
            model.add_module(name, module)
        model._modules = dict(sorted(model._modules.items()))
        for layer in (model[0], model[2], model[4]):  # the bias first
            layer._parameters = dict(sorted(layer._parameters.items()))
    with attach(model, plan) as sync:
        got = train("mlp", with_sync(sync), model=model)
    same(got, train("mlp", by_mpi))


@check
def what_one_rank_has_otherwise_is_named_with_it():
    def refused(change):
        model = make("cnn")
        plan = plan_of(model, WORLD.size)
        if WORLD.rank == 1:
            change(model)
        return said(lambda: attach(model, plan))

    text = refused(lambda model: model.register_buffer("extra", torch.zeros(3)))
    assert "rank 1 has 'extra' of shape [3], float32 where rank 0 has 'head.bias'" in text, text
    text = refused(lambda model: model.to(torch.complex64))
    assert text.startswith("rank 1: parameter 'body.0.weight' is complex64; what can be"), text
    text = refused(lambda model: model.double())
    assert text.startswith("rank 1: parameter 'body.0.weight' is float64; what can be"), text
    text = refused(lambda model: model.to("meta"))
    assert text.startswith("rank 1: parameter 'body.0.weight' lies on meta; gradients are"), text
    text = refused(lambda model: model.head.requires_grad_(False))
    assert text.startswith("rank 1: the model trains no parameter 'head.weight'; capture"), text
    text = refused(lambda model: setattr(model, "more", nn.Linear(2, 2)))
    assert text.startswith("rank 1: the plan has no tensor 'more.weight', which the model"), text


@check
def a_parameter_that_changes_after_attach_is_named():
    for change in (
        lambda model: model.__setitem__(4, nn.Linear(8, 4)),
        lambda model: model[4].requires_grad_(False),
    ):
        model = make("mlp")
        with attach(model, plan_of(model, WORLD.size)):
            change(model)
            loss_of(model, *batch("mlp", 0, WORLD.rank)).backward()
            text = said(torch.optim.SGD(model.parameters(), lr=0.1).step)
        want = f"rank {WORLD.rank}: parameter '4."
        assert text.startswith(want), text
        assert "was replaced, removed or frozen since attach; attach to the model" in text, text


@check
def a_parameter_that_is_unfrozen_or_added_after_attach_is_named():
    """No hook averages its gradient, so that ranks would differ."""
    for change in (
        lambda model: model[0].requires_grad_(True),
        lambda model: model.append(nn.Linear(4, 4)),
    ):
        for late in (False, True):
            model = make("mlp")
            model[0].requires_grad_(False)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            plan, options = plan_of(model, WORLD.size), {"find_unused_parameters": True}
            if late:
                options["update_in_forward"] = optimizer
            with attach(model, plan, **options):
                for step in range(2):
                    optimizer.zero_grad()
                    loss_of(model, *batch("mlp", step, WORLD.rank)).backward()
                    optimizer.step()
                change(model)
                if len(model) > 5:
                    optimizer.add_param_group({"params": model[5].parameters()})
                optimizer.zero_grad()
                loss_of(model, *batch("mlp", 2, WORLD.rank)).backward()
                text = said(optimizer.step)
            name = "5.weight" if len(model) > 5 else "0.weight"
            want = f"rank {WORLD.rank}: parameter '{name}' has a gradient that is not averaged: at"
            assert text.startswith(want), text


@check
def plans_that_do_not_sum_gradients_in_every_step_are_refused():
    model = make("mlp")
    plan = make_plan(Request(net=net_of(model), machine=machine(2, 1), strategy="gpipe"))
    text = said(lambda: attach(model, plan))
    assert "a plan of strategy 'gpipe' is for `commsched train`" in text, text


@check
def options_of_data_parallel_are_checked_at_once():
    def refused(model=None, **options):
        return said(lambda: DataParallel(model or make("mlp"), **options))

    assert refused(steps=3) == "steps must be at least 4, got 3"
    assert refused(calibration=0.0) == "calibration must be more than 0 seconds, got 0.0"
    assert "no codec named 'fp61'" in refused(allow=("fp61",))
    assert "nowhere.json" in refused(machine="nowhere.json")
    assert "the model trains no parameter" in refused(nn.ReLU())
    text = refused(make("mlp").double())
    assert "parameter '0.weight' is float64; what can be summed is float32" in text
    other = make("mlp")
    if WORLD.rank:
        other[2] = nn.Linear(8, 8, bias=False)
    text = refused(other)
    assert "rank 1 trains '4.weight' of shape [4, 8], float32 where rank 0 trains" in text, text
