"""What ranks check of attach with plans of `daso` and `shadow`: against plain torch and MPI."""

import io
from itertools import count

import numpy as np
import torch
from mpi4py import MPI

from commsched.exchange.registry import find_method
from commsched.planner import averages
from commsched.run.job import agree
from commsched.torch import attach
from tests.support.small_plans import machine, strategy_plan
from tests.support.torch_checks import WORLD, check, said, same, with_sync
from tests.support.torch_nets import batch, loss_of, make, net_of

LANES = 2 if WORLD.size == 4 else 1  # ranks of a node
NODE, LANE = divmod(WORLD.rank, LANES)
STEPS = 12
DASO = {"gs": 2, "wait": 1, "batches": 4, "epochs": 9, "warmup": 1, "cooldown": 1}


def plan_for(model, strategy, **params):
    """Sums whose bits are those of MPI: of two ranks by rings, of more by MPI."""
    before = averages.all_reduces
    averages.all_reduces = lambda request, group, codec: [
        find_method(f"{'ring' if group.size == 2 else 'native'}+{codec}")
    ]
    try:
        return strategy_plan(net_of(model), machine(WORLD.size // LANES, LANES), strategy, **params)
    finally:
        averages.all_reduces = before


def steps(model, optimizer, first, stop, backward, after):
    losses = []
    for step in range(first, stop):
        optimizer.zero_grad()
        loss = loss_of(model, *batch("mlp", step, WORLD.rank))
        backward(loss)
        optimizer.step()
        after(step)
        losses.append(loss.item())
    return losses, {name: value.detach().clone() for name, value in model.state_dict().items()}


def attached(plan, upto=STEPS, seed=0, **options):
    """Train with attach, and stop at a checkpoint on the way."""
    model = make("mlp", seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with attach(model, plan, **options) as sync:

        def backward(loss):
            sync.report(loss.item())
            loss.backward()

        first = steps(model, optimizer, 0, upto, backward, lambda step: None)
        kept = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict(), sync.state_dict()], kept)
    if upto == STEPS:
        return first
    kept.seek(0)
    model = make("mlp", 7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with attach(model, plan, **options) as sync:
        saved = torch.load(kept, weights_only=True)
        for part, state in zip((model, optimizer, sync), saved, strict=True):
            part.load_state_dict(state)

        def backward(loss):
            sync.report(loss.item())
            loss.backward()

        second = steps(model, optimizer, upto, STEPS, backward, lambda step: None)
    return first[0] + second[0], second[1]


def summed(values, comm):
    total = [np.empty_like(value) for value in values]
    for value, out in zip(values, total, strict=True):
        comm.Allreduce(value, out)
    return total


def by_mpi_shadow(every, lag, rule, alpha, rate, momentum):
    """Zheng et al. in a few lines; sums are taken where they begin."""
    model = make("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    values = [parameter.detach().numpy() for parameter in model.parameters()]
    a, r, m = (np.float32(x) for x in (alpha, rate, momentum))
    begun, common, speed = {}, [], [np.zeros_like(value) for value in values]

    def copy(step):
        if (step + 1) % every == 0:
            begun[step + lag] = summed([value.copy() for value in values], WORLD)

    def merge(step):
        means = [total / np.float32(WORLD.size) for total in begun.pop(step, [])]
        if means and not common:
            common.extend(mean.copy() for mean in means)
        for i, mean in enumerate(means):
            if rule == "bmuf":
                speed[i] = speed[i] * m + r * (mean - common[i])
                common[i] = common[i] + speed[i]
            goal = mean if rule == "average" else common[i]
            values[i][:] = values[i] * (np.float32(1) - a) + a * goal
            if rule == "easgd":
                common[i] = common[i] + r * (mean - common[i])

    def after(step):
        for work in (copy, merge) if lag == 0 else (merge, copy):
            work(step)

    return steps(model, optimizer, 0, STEPS, lambda loss: loss.backward(), after)


def by_mpi_daso(gs, wait, batches, epochs, warmup, cooldown, local_skip=0):
    """DASO with uncompressed blocking averages, and no plateau of the loss."""
    inside, across = WORLD.Split(NODE), WORLD.Split(LANE)
    nodes = WORLD.size // LANES
    model = make("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    values = [parameter.detach().numpy() for parameter in model.parameters()]
    begun, turn, passes = {}, [0], count()

    def own(step):
        epoch, at = divmod(step, batches)
        cycling = warmup <= epoch < epochs - cooldown and at < batches - 1
        return cycling and local_skip > 1 and at % gs > wait and at % local_skip > 0

    def backward(loss):
        loss.backward()
        if own(next(passes)):
            return
        for parameter in model.parameters():
            (total,) = summed([parameter.grad.numpy()], inside)
            parameter.grad.copy_(torch.from_numpy(total / np.float32(LANES)))

    def exchange(step, waited):
        lane = turn[0] % LANES
        turn[0] += 1
        total = summed([value.copy() for value in values], across) if lane == LANE else None
        begun[step + waited] = lane, waited, total

    def merge(step, replaces):
        lane, waited, totals = begun.pop(step)
        weight = np.float32(2 * waited or 1)
        for i, value in enumerate(values):
            if lane == LANE and replaces:
                value[:] = totals[i] / np.float32(nodes)
            elif lane == LANE:
                value[:] = (value * weight + totals[i]) / (weight + np.float32(nodes))
            inside.Bcast(value, lane)

    def after(step):
        epoch, at = divmod(step, batches)
        last = at == batches - 1
        if epoch < warmup or epoch >= epochs - cooldown:
            exchange(step, 0)
            merge(step, True)
            return
        if step in begun:
            merge(step, False)
        if last:
            exchange(step, 0)
            merge(step, True)
        elif at % gs == 0 and at + wait < batches - 1:
            exchange(step, wait)

    try:
        return steps(model, optimizer, 0, STEPS, backward, after)
    finally:
        inside.Free()
        across.Free()


@check
def shadow_merges_as_plain_mpi_and_goes_on_from_a_state():
    for every, lag, rule, momentum in (
        (3, 2, "average", 0.0),
        (2, 0, "easgd", 0.0),
        (4, 4, "bmuf", 0.5),
    ):
        how = {"every": every, "lag": lag, "rule": rule, "alpha": 0.25, "rate": 0.5}
        how["momentum"] = momentum
        plan = plan_for(make("mlp"), "shadow", **how)
        want = by_mpi_shadow(**how)
        same(attached(plan, seed=WORLD.rank), want)
        same(attached(plan, upto=7), want)  # a sum of step 5, or of step 3, is under way


@check
def daso_averages_as_plain_mpi_and_goes_on_from_a_state():
    for changes in (
        {},
        {"gs": 3, "wait": 2, "batches": 6},
        {"gs": 1, "wait": 1, "epochs": 3},
        {"gs": 4, "wait": 1, "batches": 6, "local_skip": 3},
    ):
        how = DASO | changes
        plan = plan_for(make("mlp"), "daso", blocking="dense", **how)
        want = by_mpi_daso(**how)
        same(attached(plan), want)
        same(attached(plan, upto=5 if how["batches"] == 4 else 8), want)


@check
def daso_asks_for_the_loss_where_it_decides():
    model = make("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = plan_for(model, "daso", **DASO | {"warmup": 0, "batches": 1})
    with attach(model, plan) as sync:
        loss_of(model, *batch("mlp", 0, WORLD.rank)).backward()
        text = said(optimizer.step)
        sync.report(1.0)
        optimizer.step()
    assert "strategy 'daso' decides by the mean loss of all ranks how often" in text, text


def scaled_steps(model, count):
    """Train with a GradScaler; rank 1 overflows in the second step. Return the scale."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(count):
        optimizer.zero_grad()
        loss = loss_of(model, *batch("mlp", step, WORLD.rank))
        scaler.scale(loss * (float("inf") if (step, WORLD.rank) == (1, 1) else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    return scaler.get_scale()


@check
def a_step_that_a_grad_scaler_skips_is_a_step_of_shadow():
    """Only the rank that overflows skips; sums of all ranks come in the same steps."""
    model = make("mlp")
    plan = plan_for(model, "shadow", every=2, lag=1)
    with attach(model, plan, skip_overflow=True) as sync:
        scale = scaled_steps(model, 4)
        kept = sync.state_dict()
    assert kept["step"] == 4
    assert (scale == 512.0) == (WORLD.rank == 1)


@check
def a_rank_may_end_after_a_step_that_its_scaler_skips():
    """The others wait for its parameters in their last step."""
    model = make("mlp")
    plan = plan_for(model, "shadow", every=1, lag=0, alpha=1.0)
    with attach(model, plan, skip_overflow=True, timeout=20.0):
        scaled_steps(model, 2)
    flat = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()
    assert len(set(agree.gather_text(flat.tobytes().hex(), WORLD))) == 1


@check
def a_rank_that_uses_nothing_in_a_step_of_daso_goes_on():
    if LANES == 1:
        return
    model = make("fork")
    plan = plan_for(model, "daso", **DASO | {"warmup": 9, "blocking": "dense"})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(model, plan, find_unused_parameters=True, timeout=20.0):
        for step in range(4):
            optimizer.zero_grad()
            loss = loss_of(model, *batch("fork", step, WORLD.rank))
            if (step, WORLD.rank) not in ((1, 3), (2, 0)):
                loss.backward()
            optimizer.step()
        flat = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()
    assert len(set(agree.gather_text(flat.tobytes().hex(), WORLD))) == 1


@check
def daso_accumulates_gradients_of_bfloat16_with_parameters_that_some_ranks_do_not_use():
    model = make("fork").bfloat16()
    model.odd = WORLD.rank == 1
    plan = plan_for(model, "daso", **DASO | {"warmup": 9, "blocking": "dense"})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(model, plan, find_unused_parameters=True) as sync:
        for step in range(4):
            optimizer.zero_grad()
            for part in range(2):
                inputs, targets = batch("fork", 2 * step + part, WORLD.rank)
                with_sync(sync)(model, loss_of(model, inputs.bfloat16(), targets), part == 1)
            optimizer.step()
        flat = torch.cat([p.detach().float().flatten() for p in model.parameters()]).numpy()
    least, most = np.empty_like(flat), np.empty_like(flat)
    WORLD.Allreduce(flat, least, op=MPI.MIN)
    WORLD.Allreduce(flat, most, op=MPI.MAX)
    assert (least == most).all()  # after a blocking average
    assert not np.array_equal(flat[:36], make("fork").left.weight.detach().numpy().ravel())
