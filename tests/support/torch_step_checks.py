"""What two ranks check of attach in steps that are not like the others, as DDP does them."""

from contextlib import suppress

import numpy as np
import torch
from torch import nn

from commsched.torch import DataParallel, attach
from commsched.torch.hooks import Hook
from tests.support.torch_checks import WORLD, averaged, by_mpi, check, said, same, train, with_sync
from tests.support.torch_nets import Tables, batch, loss_of, make, plan_of


@check
def a_backward_pass_goes_through_two_forward_passes():
    """BatchNorm's backward pass needs the buffers of each of them."""
    model = make("cnn")
    with attach(model, plan_of(model, WORLD.size)):
        for step in range(2):
            sum(
                loss_of(model, *batch("cnn", 2 * step + k, WORLD.rank)) for k in range(2)
            ).backward()
            got = [parameter.grad.clone() for parameter in model.parameters()]
            averaged(model)  # of what are means already
            for mine, parameter in zip(got, model.parameters(), strict=True):
                assert torch.allclose(mine, parameter.grad, rtol=1e-6)
            model.zero_grad()


class Moving(nn.Module):
    """A layer beside a buffer that is replaced, not written."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        self.mean = 0.5 * self.mean + x.detach().mean(0)
        return self.layer(x - self.mean)


@check
def buffers_that_are_replaced_are_those_of_rank_0():
    model = Moving()
    with attach(model, plan_of(model, WORLD.size)):
        for step in range(2):
            loss_of(model, *batch("mlp", step, WORLD.rank)).backward()
    first = batch("mlp", 0, 0)[0].mean(0)
    assert torch.equal(model.mean, 0.5 * first + batch("mlp", 1, WORLD.rank)[0].mean(0))


@check
def a_forward_pass_between_backward_and_step_changes_nothing():
    """As one that counts right answers: in training mode, with autograd."""

    def trained(looks, late, **options):
        model = make("mlp")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plan = plan_of(model, WORLD.size, ("all-gather+topk:0.2",))
        options |= {"update_in_forward": optimizer} if late else {}
        with attach(model, plan, **options) as sync:
            for step in range(4):
                optimizer.zero_grad()
                loss_of(model, *batch("mlp", step, WORLD.rank)).backward()
                if looks:
                    model(batch("mlp", step, WORLD.rank)[0])
                optimizer.step()
            steps = sync.state_dict()["step"]
        return steps, [parameter.detach().clone() for parameter in model.parameters()]

    for some_unused in (False, True):
        for late in (False, True):
            found = [trained(looks, late, find_unused_parameters=some_unused) for looks in (0, 1)]
            assert found[0][0] == found[1][0] == 4, found
            assert all(map(torch.equal, found[0][1], found[1][1]))


@check
def a_rank_that_uses_nothing_takes_part_after_a_step_that_the_script_has_left_out():
    model = make("fork")
    model.odd = WORLD.rank == 1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(model, plan_of(model, WORLD.size), find_unused_parameters=True):
        for step in range(4):
            optimizer.zero_grad(set_to_none=step < 2)
            loss = loss_of(model, *batch("fork", step, WORLD.rank))
            if not step or not WORLD.rank:
                loss.backward()
            if step:
                optimizer.step()
        got = [(name, p.grad) for name, p in model.named_parameters()]
    used = {name for name, gradient in got if gradient is not None}
    assert used == {f"{layer}.{kind}" for layer in ("left", "head") for kind in ("weight", "bias")}


class Fails(torch.autograd.Function):
    """What runs out of memory in a backward pass, on all ranks."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("out of memory")


@check
def a_training_goes_on_with_another_attach_after_a_backward_pass_that_failed():
    """A few gradients, or all of them, were handed over in it."""
    for some_unused, before in ((False, 2), (False, 0), (True, 2)):
        model = make("mlp")
        plan = plan_of(model, WORLD.size)
        sync = attach(model, plan, find_unused_parameters=some_unused)
        x, _ = batch("mlp", 0, WORLD.rank)
        inputs = Fails.apply(model[:before](x.requires_grad_()))
        with suppress(RuntimeError):
            model[before:](inputs).sum().backward()
        model.zero_grad()
        text = said(lambda model=model: loss_of(model, *batch("mlp", 1, WORLD.rank)).backward())
        assert "got a second gradient before" in text, text
        assert ("find_unused" in text) is (before > 0 and not some_unused), text
        assert text.endswith("an exception in a backward pass close the exchange, and attach again")
        sync.close()
        model.zero_grad()
        with attach(model, plan):
            loss_of(model, *batch("mlp", 1, WORLD.rank)).backward()
        got = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        loss_of(model, *batch("mlp", 1, WORLD.rank)).backward()
        averaged(model)
        assert all(torch.equal(g, p.grad) for g, p in zip(got, model.parameters(), strict=True))


@check
def a_buffer_without_elements_stays_as_it_is():
    model = make("mlp")
    model.register_buffer("seen", torch.zeros(0, 2))
    with attach(model, plan_of(model, WORLD.size)):
        loss_of(model, *batch("mlp", 0, WORLD.rank)).backward()
    assert model.seen.shape == (0, 2)


@check
def expanded_buffers_are_those_of_rank_0_and_sparse_ones_are_named():
    model = make("mlp")
    rows = torch.arange(3.0)[:, None] + WORLD.rank
    model.register_buffer("scale", torch.tensor(1.0 + WORLD.rank).expand(4, 4))
    model.register_buffer("rows", rows.expand(3, 5))
    with attach(model, plan_of(model, WORLD.size)):
        loss_of(model, *batch("mlp", 0, WORLD.rank)).backward()
    assert torch.equal(model.scale, torch.ones(4, 4))
    assert torch.equal(model.rows, torch.arange(3.0)[:, None].expand(3, 5))
    model = make("mlp")
    plan = plan_of(model, WORLD.size)
    if WORLD.rank:
        model.register_buffer("links", torch.eye(4).to_sparse())
    text = said(lambda: attach(model, plan))
    assert text.startswith("rank 1: 'links' is torch.sparse_coo, and ranks begin with the"), text


@check
def names_that_wrappers_make_alike_are_refused():
    model = nn.Module()
    model.bias, model.module = nn.Parameter(torch.zeros(4)), nn.Linear(6, 4)
    plan = plan_of(nn.Linear(6, 4), WORLD.size)
    assert "two tensors of the model are named 'bias'" in said(lambda: attach(model, plan))


@check
def the_rows_that_are_counted_are_those_of_one_rank():
    """Each rank hits one row of its own: a density of 1 / rows, and not of both together."""
    model = Tables()
    parallel = DataParallel(model, steps=4, machine="localhost")
    words = torch.full((2, 9), 3 + WORLD.rank)
    for _ in range(3 + 4):
        loss_of(parallel, words, words).backward()
        model.zero_grad()
    law = parallel.plan.net.tensors["words.weight"].sparsity
    parallel.close()
    assert law.after([1])[0] == 1 / len(model.words.weight), law


@check
def what_a_codec_kept_of_a_tensor_that_nobody_uses_arrives():
    """The third arm is used in the first step only; top-k sends its gradient in parts."""
    model = make("fork")
    plan = plan_of(model, WORLD.size, ("all-gather+topk:0.3",), 100.0)
    given = torch.arange(36.0).view(6, 6) + WORLD.rank
    total = torch.zeros(6, 6)
    with attach(model, plan, find_unused_parameters=True):
        for step in range(6):
            model.zero_grad()
            loss = loss_of(model, *batch("fork", step, WORLD.rank))
            (loss + (model.third.weight * given).sum() if step == 0 else loss).backward()
            if model.third.weight.grad is not None:
                total += model.third.weight.grad
    assert model.third.weight.grad is None  # all of it has arrived
    assert torch.equal(total, given - WORLD.rank + (WORLD.size - 1) / 2)


@check
def a_full_bucket_is_handed_over_with_all_that_came():
    """As is the first gradient of a step; what comes between waits for the next full bucket."""
    model = make("mlp")
    plan = plan_of(model, WORLD.size, bucket=400.0)  # B
    unfilled = [{piece.tensor for piece in launch.pieces} for launch in plan.launches]
    assert 1 < len(unfilled) < len(list(model.parameters()))
    with attach(model, plan) as sync:
        ready, handed = sync._exchanger.ready, []
        sync._exchanger.ready = lambda name, *rest, **how: (
            handed.append(name) or ready(name, *rest, **how)
        )
        seen, wanted, got = [], [], []

        def after(name):
            seen.append(name)
            full = any(name in bucket and bucket <= set(seen) for bucket in unfilled)
            wanted.append(list(seen) if full or len(seen) == 1 else wanted[-1])
            got.append(list(handed))

        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(Hook(lambda _, name=name: after(name)))
        for step in range(2):
            loss_of(model, *batch("mlp", step, WORLD.rank)).backward()
            assert got == wanted
            assert handed == seen
            for names in (seen, wanted, got, handed):
                names.clear()


@check
def a_model_in_evaluation_mode_is_trained_like_another_one():
    """Also where a rank uses nothing in a step."""
    for eval_mode in (False, True):
        model = make("mlp").train(not eval_mode)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with attach(model, plan_of(model, WORLD.size), find_unused_parameters=True):
            for step in range(3):
                optimizer.zero_grad()
                loss = loss_of(model, *batch("mlp", step, WORLD.rank))
                alone = step == 1 and WORLD.rank == 1
                if not alone:
                    loss.backward()
                optimizer.step()
                got = [parameter.grad.clone() for parameter in model.parameters()]
                every = WORLD.allgather([one.numpy() for one in got])
                assert all(map(np.array_equal, every[0], every[1]))
                assert all(bool(one.any()) for one in got)


@check
def what_fp16_may_not_reach_is_an_overflow_for_a_scaler():
    for value, skips in ((3.2e4, False), (3.3e4, True)):
        model = torch.nn.Linear(2, 1, bias=False)
        with attach(model, plan_of(model, WORLD.size, ("ring+fp16",)), skip_overflow=True):
            (model(torch.ones(1, 2)).sum() * (value if WORLD.rank else 1.0)).backward()
            assert bool(torch.isinf(model.weight.grad).all()) is skips


@check
def a_parameter_without_elements_is_left_out():
    def with_nothing():
        model = make("mlp")
        model[0].nothing = nn.Parameter(torch.empty(0))
        model[0].register_forward_hook(lambda layer, _, out: out + layer.nothing.sum())
        return model

    model = with_nothing()
    with attach(model, plan_of(make("mlp"), WORLD.size)) as sync:
        same(train("mlp", with_sync(sync), model=model), train("mlp", by_mpi, model=with_nothing()))
