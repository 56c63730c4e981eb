"""What two ranks check of attach(..., update_in_forward=optimizer): the bits of waiting at once."""

import tempfile
from pathlib import Path

import torch
from mpi4py import MPI
from torch import nn

from commsched.timeline import check as timeline_check
from commsched.timeline import file as timeline_file
from commsched.torch import attach
from tests.support.overlaps import overlaps
from tests.support.torch_checks import METHODS, WORLD, check, said, same, with_sync
from tests.support.torch_nets import batch, loss_of, make, plan_of


def trained(kind, late, steps=4, micro=1, rate=0.01, **options):
    """Adam with a learning rate that changes after each step; an evaluation in between."""
    model = make(kind)
    if kind == "fork":
        model.odd = WORLD.rank == 1
    first, *others = model.parameters()
    optimizer = torch.optim.Adam([{"params": [first], "lr": 0.02}, {"params": others}], lr=rate)
    options |= {"update_in_forward": optimizer} if late else {}
    plan = plan_of(model, WORLD.size, METHODS)
    losses = []
    with attach(model, plan, **options) as sync:
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        for step in range(steps):
            optimizer.zero_grad()
            for part in range(micro):
                loss = loss_of(model, *batch(kind, step * micro + part, WORLD.rank))
                with_sync(sync)(model, loss, part == micro - 1)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            if step == 1:
                model.eval()
                losses.append(loss_of(model, *batch(kind, 99, 0)).item())
                model.train()
            if step == 2:
                values = [v.clone() for v in model.state_dict().values()]
                losses.append(sum(v.double().sum().item() for v in values))
                losses.append(sync.state_dict()["step"])
    return losses, {name: value.detach().clone() for name, value in model.state_dict().items()}


@check
def updates_under_the_next_forward_pass_have_the_same_bits():
    for kind in ("mlp", "gpt", "lstm", "cnn", "again"):
        same(trained(kind, late=True), trained(kind, late=False))
    same(trained("mlp", True, micro=3), trained("mlp", False, micro=3))
    options = {"find_unused_parameters": True}
    same(trained("fork", True, **options), trained("fork", False, **options))


@check
def what_the_script_reads_outside_the_forward_pass_changes_in_the_step():
    """A layer that the loss function calls before the model."""

    def found(late):
        model = make("mlp")
        model.outside = nn.Linear(6, 6)
        model.forward = nn.Sequential(*model[:5]).forward
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"update_in_forward": optimizer} if late else {}
        with attach(model, plan_of(model, WORLD.size), **options):
            for step in range(3):
                optimizer.zero_grad()
                x, targets = batch("mlp", step, WORLD.rank)
                loss_of(model, model.outside(x), targets).backward()
                optimizer.step()
            return list(model.state_dict().values())

    assert all(map(torch.equal, found(True), found(False)))


class Dropped(nn.Module):
    """Blocks with scales of the model's own; some passes leave a block out."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.scales, self.left_out = nn.Parameter(torch.ones(3)), None

    def forward(self, x):
        for number, block in enumerate(self.blocks):
            if number != self.left_out:
                x = x + block(x).tanh() * self.scales[number]
        return x


@check
def a_parameter_that_a_model_reads_between_its_modules_does_not_wait_for_one_of_them():
    """The first block, after which the scales are read first, is not always entered."""

    def found(late):
        torch.manual_seed(0)
        model = Dropped()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"update_in_forward": optimizer} if late else {}
        plan = plan_of(model, WORLD.size)
        with attach(model, plan, find_unused_parameters=True, **options):
            for step, model.left_out in enumerate((None, 0, 2, 0)):
                optimizer.zero_grad()
                loss_of(model, *batch("mlp", step, WORLD.rank)).backward()
                optimizer.step()
            return list(model.state_dict().values())

    assert all(map(torch.equal, found(True), found(False)))


@check
def a_rate_that_is_a_tensor_is_that_of_the_call_of_the_optimizer():
    """The scheduler writes the next rate into the same tensor."""
    late, waiting = (trained("mlp", late, rate=torch.tensor(0.01)) for late in (True, False))
    same(late, waiting)


@check
def a_parameter_changes_when_its_module_is_entered():
    model, seen, kept = make("mlp"), [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(MPI.COMM_WORLD.bcast(folder)) / "measured.json"
        with attach(model, plan_of(model, 2), update_in_forward=optimizer, timeline=path):
            for step in range(5):
                if step == 1:  # in the first forward pass it would count who reads a parameter
                    for module in (model[2], model):
                        module.register_forward_hook(
                            lambda *_: seen.append(torch.equal(model[4].weight, kept[-1]))
                        )
                optimizer.zero_grad()
                loss_of(model, *batch("mlp", step, WORLD.rank)).backward()
                before = model[4].weight.detach().clone()
                optimizer.step()
                assert torch.equal(before, model[4].weight)
                assert model[4].weight.grad is None
                kept.append(model[4].weight.detach().clone())
        assert seen == 4 * [True, False], seen
        if WORLD.rank == 0:
            timeline = timeline_file.read(path)
            assert not timeline_check.problem(timeline), timeline_check.problem(timeline)
            assert not overlaps(timeline, tolerance=1e-6), overlaps(timeline)[:3]
            assert any(span.name.endswith("/apply") for span in timeline)


@check
def what_cannot_be_updated_in_the_forward_pass_is_one_sentence():
    model, other = make("mlp"), make("mlp")

    def refused(optimizer, **options):
        plan = plan_of(model, WORLD.size)
        return said(lambda: attach(model, plan, update_in_forward=optimizer, **options))

    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    assert "does not go with skip_overflow" in refused(sgd, skip_overflow=True)
    part = torch.optim.SGD(model[0].parameters(), lr=0.1)
    assert "the optimizer has no parameter '" in refused(part)
    more = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    assert "the optimizer has parameters of another model" in refused(more)
    plan = plan_of(model, WORLD.size)
    with attach(model, plan, update_in_forward=sgd):
        loss_of(model, *batch("mlp", 0, WORLD.rank)).backward()
        text = said(lambda: loss_of(model, *batch("mlp", 1, WORLD.rank)).backward())
        assert "each backward pass is followed by optimizer.step()" in text, text


@check
def a_parameter_that_another_module_reads_first_is_named():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.turned = nn.Linear(6, 6), nn.Linear(6, 4), False

        def forward(self, x):
            if self.turned:  # not through the module
                x = x @ self.one.weight
            return self.two(x if self.turned else self.one(x))

    model = Turned()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"update_in_forward": optimizer, "find_unused_parameters": True}
    with attach(model, plan_of(model, WORLD.size), **options):
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, *batch("mlp", step, WORLD.rank)).backward()
            optimizer.step()
        model.turned = True
        text = said(lambda: loss_of(model, *batch("mlp", 2, WORLD.rank)).backward())
    assert "parameter 'one.weight' was read by another module than in the first" in text, text


@check
def a_part_that_the_script_calls_or_saves_alone_is_up_to_date():
    found = {}
    for late in (False, True):
        model = make("gpt")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"update_in_forward": optimizer} if late else {}
        with attach(model, plan_of(model, WORLD.size), **options):
            for step in range(3):
                optimizer.zero_grad()
                loss_of(model, *batch("gpt", step, WORLD.rank)).backward()
                optimizer.step()
            model.eval()
            found[late] = [model.head(torch.ones(1, 16)).detach()]
            model.train()
            optimizer.zero_grad()
            loss_of(model, *batch("gpt", 3, WORLD.rank)).backward()
            optimizer.step()
            found[late] += [v.clone() for v in model.blocks[1].state_dict().values()]
    assert all(map(torch.equal, found[False], found[True]))
