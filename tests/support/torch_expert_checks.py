"""What two ranks check of captured experts in the job of tests/support/torch_job.py."""

import numpy as np
import torch
from torch import nn

from commsched.net import file as net_file
from commsched.net.expert_part import expert_part
from commsched.net.experts import Experts
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.run import session
from commsched.run.session import RunOptions
from commsched.simulate.engine import simulate
from commsched.timeline import file as timeline_file
from commsched.timeline.compare import compare
from commsched.torch import attach
from tests.support.small_plans import machine
from tests.support.torch_capture_checks import of_inputs, planned
from tests.support.torch_checks import WORLD, check, said
from tests.support.torch_kinds import FusedMoe, Moe
from tests.support.torch_timeline_checks import folder

ROWS = 96


def kind(make):
    """A model, equal on all ranks, and rows of this one."""
    torch.manual_seed(3)
    draw = torch.Generator().manual_seed(WORLD.rank)
    return make(), torch.randn(ROWS, 6, generator=draw)


def unchanged(model):
    """A loss from which nothing is learnt."""
    return lambda some: model(*some).mean() * 0.0


def chosen(model, rows, top):
    """How often the gate chooses each expert on each rank: (ranks, experts)."""
    picked = model.gate(rows).topk(top).indices.flatten().numpy()
    count = len(model.gate.weight)
    found = np.empty((WORLD.size, count))
    WORLD.Allgather(np.bincount(picked, minlength=count).astype(float), found)
    return found


@check
def the_load_of_experts_is_what_their_tokens_choose():
    """The gate does not learn, so that all steps choose alike."""
    for make, top in ((Moe, 1), (FusedMoe, 2)):
        model, rows = kind(make)
        want = chosen(model, rows, top)
        net = of_inputs(model, (rows,), unchanged(model))
        (experts,) = net.experts_of.values()
        assert isinstance(experts, Experts)
        assert (experts.tokens, experts.top, experts.width) == (ROWS, top, 6)
        np.testing.assert_allclose(experts.load, want.mean(axis=0) / (ROWS * top), rtol=1e-12)
        assert experts.slots == want.max()  # of one rank in one step
        assert f"{len(want[0])} experts, top {top}, load of" in net.source, net.source
        names = {n: tuple(p.shape) for n, p in model.named_parameters()}
        assert {n: t.shape for n, t in net.tensors.items()} == names
        assert net_file.from_data(net_file.to_data(net), "net") == net


@check
def a_captured_mixture_is_planned_with_expert_simulated_and_run():
    path, held = folder()
    for make, shape in ((lambda: Moe(2), (2, 4, 6)), (FusedMoe, (4, 10, 6))):
        model, rows = kind(make)
        net = of_inputs(model, (rows,))
        (layer,) = net.experts_of
        whole = expert_part(net, 1)
        assert shape in [t.shape for t in whole.tensors.values() if t.axis == 0], whole
        assert whole.numel == net.numel
        params = {"expert": 2}
        on = machine(1, WORLD.size)
        plan = make_plan(Request(net=net, machine=on, strategy="expert", params=params))
        predicted = simulate(plan, 3).timeline()
        session.run(plan, WORLD, path / "measured.json", RunOptions(steps=3))
        WORLD.Barrier()
        found = compare(predicted, timeline_file.read(path / "measured.json"))
        assert found.only_predicted == found.only_measured == (), found
        assert f"{layer}/dispatch/forward/exchange" in predicted.names
        WORLD.Barrier()
    del held


@check
def an_attached_mixture_is_one_layer_in_the_timeline_as_in_the_net():
    path, held = folder()
    model, rows = kind(Moe)
    net = of_inputs(model, (rows,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    unused, name = {"find_unused_parameters": True}, path / "attached.json"
    with attach(model, planned(net), timeline=name, **unused):
        for _ in range(3):
            optimizer.zero_grad()
            model(rows).square().mean().backward()
            optimizer.step()
    WORLD.Barrier()
    found = compare(simulate(planned(net), 3).timeline(), timeline_file.read(name))
    WORLD.Barrier()
    assert found.only_predicted == ()
    assert set(found.only_measured) == {"data", "optimizer"}
    del held


class Sum(Moe):
    """All experts compute all rows."""

    def forward(self, x):
        share = self.gate(x).softmax(-1)
        return sum(e(x) * share[:, [k]] for k, e in enumerate(self.experts))


@check
def what_of_experts_is_not_seen_is_said_and_other_modules_are_no_experts():
    model, rows = kind(Sum)
    net = of_inputs(model, (rows,))
    assert not net.experts_of
    assert "experts: no choice among its 3 experts was seen" in net.source, net.source
    blocks = nn.ModuleDict({"all": nn.ModuleList(nn.Linear(6, 6) for _ in range(3))})
    blocks["head"] = nn.Linear(6, 3)

    def through(some):
        x = some[0]
        for block in blocks["all"]:
            x = block(x).relu()
        return blocks["head"](x).square().mean()

    net = of_inputs(blocks, (rows,), through)
    assert not net.experts_of
    assert "experts" not in net.source, net.source


@check
def experts_of_other_shapes_cannot_be_put_together():
    model, rows = kind(Moe)
    net = of_inputs(model, (rows,))
    data = net_file.to_data(net)
    for layer in data["layers"]:
        layer["tensors"] = layer["tensors"][:-1]
    text = said(lambda: expert_part(net_file.from_data(data, "net"), 1))
    assert "needs a tensor of one shape and dtype for each of its 3 experts, got 2" in text, text
