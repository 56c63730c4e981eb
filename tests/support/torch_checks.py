"""What two ranks check of commsched.torch.attach in the job of tests/support/torch_job.py."""

import io
from dataclasses import replace

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

from commsched.errors import CommschedError
from commsched.torch import DataParallel, attach
from tests.support.torch_nets import batch, loss_of, make, plan_of

WORLD = MPI.COMM_WORLD
METHODS = ("ring+dense", "doubling+dense", "direct+dense")
CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def averaged(model):
    """What is tested against: MPI_Allreduce of every gradient after backward."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            total = parameter.grad.float().cpu().numpy().copy()
            WORLD.Allreduce(MPI.IN_PLACE, total)
            parameter.grad.copy_(torch.from_numpy(total / WORLD.size))


def train(kind, between, steps=3, model=None, micro=1, clip=None, first=0, optimizer=None):
    """Losses and parameters after some steps; `between(model)` follows backward."""
    model = make(kind) if model is None else model
    if optimizer is None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        for part in range(micro):
            loss = loss_of(model, *batch(kind, step * micro + part, WORLD.rank))
            between(model, loss, part == micro - 1)
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.detach().clone() for name, value in model.state_dict().items()}


def by_mpi(model, loss, last):
    loss.backward()
    if last:
        averaged(model)


def with_sync(sync):
    def between(model, loss, last):
        if last:
            loss.backward()
        else:
            with sync.no_sync():
                loss.backward()

    return between


def same(got, want):
    """Equal losses and equal bits of all values."""
    assert got[0] == want[0], (got[0], want[0])
    for name, value in want[1].items():
        assert torch.equal(got[1][name], value), name


def ours(kind, seed_of_rank=False, methods=METHODS, options=None, **how):
    """Train with attach; `seed_of_rank`: ranks begin with other parameters."""
    model = make(kind, WORLD.rank if seed_of_rank else 0)
    with attach(model, plan_of(model, WORLD.size, methods), **(options or {})) as sync:
        return train(kind, with_sync(sync), model=model, **how)


def said(work):
    """The sentence of all ranks."""
    try:
        work()
    except CommschedError as error:
        return str(error)
    return "nothing was refused"


@check
def mlp():
    same(ours("mlp", seed_of_rank=True), train("mlp", by_mpi))


@check
def gpt_with_tied_embedding():
    same(ours("gpt"), train("gpt", by_mpi))


@check
def lstm():
    same(ours("lstm"), train("lstm", by_mpi))


@check
def cnn_with_batch_norm():
    """Buffers before each forward are those of rank 0; after it each rank has its own."""

    def between(model, loss, last):
        by_mpi(model, loss, last)
        for buffer in model.buffers():  # what the next forward begins with
            WORLD.Bcast(values := buffer.cpu().numpy().copy(), 0)
            kept.append((buffer, torch.from_numpy(values)))

    kept = []
    model, optimizer = make("cnn"), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    want = []
    for step in range(3):
        for buffer, values in kept:
            buffer.copy_(values.reshape(buffer.shape))
        kept.clear()
        want.append(train("cnn", between, 1, model, first=step, optimizer=optimizer))
    got = ours("cnn")
    same(got, ([loss for losses, _ in want for loss in losses], want[-1][1]))


@check
def gradient_accumulation_and_clipping():
    same(ours("mlp", micro=3, clip=0.1), train("mlp", by_mpi, micro=3, clip=0.1))


@check
def several_backward_passes():
    """Each adds its mean, as with DistributedDataParallel."""
    model = make("mlp")
    with attach(model, plan_of(model, WORLD.size)):
        for step in range(2):
            loss_of(model, *batch("mlp", step, WORLD.rank)).backward()
        got = [p.grad.clone() for p in model.parameters()]
    want = make("mlp")
    for step in range(2):
        loss_of(want, *batch("mlp", step, WORLD.rank)).backward()
    averaged(want)
    for a, b in zip(got, want.parameters(), strict=True):
        torch.testing.assert_close(a, b.grad)  # another order of additions


@check
def bfloat16():
    model = make("mlp").bfloat16()

    def between(model, loss, last):
        loss.backward()
        averaged(model)

    def one(model, between):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            inputs, targets = batch("mlp", step, WORLD.rank)
            optimizer.zero_grad()
            between(model, loss_of(model, inputs.bfloat16(), targets), True)
            optimizer.step()
        return model.state_dict()

    with attach(model, plan_of(model, WORLD.size)) as sync:
        got = one(model, with_sync(sync))
    want = one(make("mlp").bfloat16(), between)
    assert all(torch.equal(got[name], want[name]) for name in want)


@check
def grad_scaler_skips_on_all_ranks():
    """Rank 1 overflows in step 1; nobody steps, both halve the scale."""
    model = make("mlp")
    scaler = torch.amp.GradScaler(torch.get_default_device().type, init_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(model, plan_of(model, WORLD.size), skip_overflow=True):
        for step in range(3):
            before = model[0].weight.detach().clone()
            optimizer.zero_grad()
            loss = loss_of(model, *batch("mlp", step, WORLD.rank))
            scale = float("inf") if (step, WORLD.rank) == (1, 1) else 1.0
            scaler.scale(loss * scale).backward()
            scaler.step(optimizer)
            scaler.update()
            assert torch.equal(before, model[0].weight) == (step == 1), step
    assert scaler.get_scale() == 512.0


@check
def unused_parameters_on_some_ranks():
    model, want = make("fork"), make("fork")
    model.odd = want.odd = WORLD.rank % 2 == 1
    with attach(model, plan_of(model, WORLD.size), find_unused_parameters=True):
        loss_of(model, *batch("fork", 0, WORLD.rank)).backward()
        got = {name: p.grad for name, p in model.named_parameters()}
    loss_of(want, *batch("fork", 0, WORLD.rank)).backward()
    for name, parameter in want.named_parameters():
        if name.startswith("third"):
            assert got[name] is None
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    averaged(want)
    for name, parameter in want.named_parameters():
        if not name.startswith("third"):
            assert torch.equal(got[name], parameter.grad), name


@check
def a_parameter_without_a_gradient_is_named_at_the_step():
    model = make("fork")
    model.third.requires_grad_(False)
    with attach(model, plan_of(model, WORLD.size)):
        loss_of(model, *batch("fork", 0, WORLD.rank)).backward()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        text = said(optimizer.step)
        other = torch.optim.SGD(make("mlp").parameters(), lr=0.1)
        other.step()  # nobody asks for its parameters
    assert f"rank {WORLD.rank}: parameter 'right." in text, text
    assert "got no gradient in this step" in text


@check
def frozen_parameters_and_user_hooks():
    def halve(parameter):
        parameter.grad.mul_(0.5)

    def prepared():
        model = make("mlp")
        model[0].weight.requires_grad_(False)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(halve)
        return model

    model = prepared()
    with attach(model, plan_of(model, WORLD.size)) as sync:
        got = train("mlp", with_sync(sync), model=model)
    same(got, train("mlp", by_mpi, model=prepared()))


@check
def means_are_the_gradients_and_are_not_copied():
    """Adding to the means in place and hooks that come after ours change nothing."""

    def spoil(parameter):
        parameter.grad.zero_()

    bits = {}
    for late_hook in (False, True):
        for keeps in (False, True):
            model = make("mlp")
            with attach(model, plan_of(model, WORLD.size)) as sync:
                if late_hook:
                    for parameter in model.parameters():
                        parameter.register_post_accumulate_grad_hook(spoil)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for step in range(3):
                    optimizer.zero_grad(set_to_none=not keeps)
                    loss_of(model, *batch("mlp", step, WORLD.rank)).backward()
                    optimizer.step()
                    states = sync._exchanger._engine.buckets.states
                    means = [s["result"] for s in states] + [
                        *sync._exchanger._caller.whole.values()
                    ]
                    for parameter in model.parameters():
                        gradient = parameter.grad.numpy()
                        shares = any(np.shares_memory(mean, gradient) for mean in means)
                        assert shares is not late_hook
            bits[late_hook, keeps] = [p.detach().clone() for p in model.parameters()]
    first = bits.pop((False, False))
    for other in bits.values():
        assert all(map(torch.equal, first, other))


@check
def a_state_goes_on_to_the_same_bits():
    """A codec with feedback and random choices: 2 + 2 steps are 4 steps."""
    methods = ("all-gather+topk", "ring+dense", "all-gather+randomk")
    want = ours("gpt", methods=methods, steps=4)
    model = make("gpt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    plan, saved = plan_of(model, WORLD.size, methods), io.BytesIO()
    with attach(model, plan) as sync:
        first = train("gpt", with_sync(sync), 2, model, optimizer=optimizer)
        torch.save(sync.state_dict(), saved)
    saved.seek(0)
    with attach(model, plan) as sync:
        sync.load_state_dict(torch.load(saved, weights_only=True))
        second = train("gpt", with_sync(sync), 2, model, first=2, optimizer=optimizer)
    same((first[0] + second[0], second[1]), want)


@check
def a_plan_of_another_model_is_refused():
    model, other = make("mlp"), make("lstm")
    text = said(lambda: attach(model, plan_of(other, WORLD.size)))
    assert "the model trains no parameter 'words.weight'" in text, text


@check
def a_plan_of_sums_is_refused():
    model = make("mlp")
    text = said(lambda: attach(model, replace(plan_of(model, WORLD.size), mean=False)))
    assert "the plan sums gradients, but .grad holds means; plan without --sum" in text, text


@check
def another_shape_on_one_rank_names_it():
    model = make("mlp")
    plan = plan_of(model, WORLD.size)
    if WORLD.rank == 1:
        model[2] = nn.Linear(8, 7)
    text = said(lambda: attach(model, plan))
    assert text.startswith("rank 1: parameter '2.weight' has shape [7, 8], in the plan [8, 8]")


@check
def data_parallel_trains_as_before_while_it_finds_its_plan():
    """Dense steps, a plan, both in turns, the faster one: the same bits all along."""
    model, want = make("fork", WORLD.rank), make("fork")
    model.odd = want.odd = WORLD.rank == 1
    parallel = DataParallel(model, steps=4, machine="localhost", find_unused_parameters=True)
    losses, values = train("fork", lambda _, loss, last: loss.backward(), 3 + 4 + 12 + 2, parallel)
    parallel.close()

    def between(model, loss, last):
        loss.backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is None and not name.startswith("third"):
                parameter.grad = torch.zeros_like(parameter)
        averaged(model)

    values = {name.removeprefix("module."): value for name, value in values.items()}
    same((losses, values), train("fork", between, 21, want))
    assert set(parallel.plan.net.tensors) == {name for name, _ in model.named_parameters()}


@check
def float64_and_sparse_are_refused():
    model = make("mlp").double()
    text = said(lambda: attach(model, plan_of(model, WORLD.size)))
    assert "parameter '0.weight' is float64; what can be summed is float32" in text, text


@check
def activation_checkpointing():
    """The backward pass of a reentrant checkpoint is one inside another."""
    want = train("again", by_mpi)
    for reentrant in (False, True):
        model = make("again")
        model.reentrant = reentrant
        with attach(model, plan_of(model, WORLD.size)) as sync:
            same(train("again", with_sync(sync), model=model), want)
