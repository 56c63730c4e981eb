"""What two ranks check of commsched.torch.capture in the job of tests/support/torch_job.py."""

import os
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from commsched.exchange import recorded_gradients
from commsched.net import file as net_file
from commsched.plan.model import Plan
from commsched.torch import attach, capture, model_work
from tests.support.small_plans import machine
from tests.support.small_plans import plan as small_plan
from tests.support.torch_checks import WORLD, by_mpi, check, said, same, train, with_sync
from tests.support.torch_kinds import Bert, Dlrm, Moe
from tests.support.torch_nets import batch, loss_of, make


def captured(kind, model=None, loss=None, **options):
    model = make(kind) if model is None else model
    batches = [batch(kind, step, WORLD.rank) for step in range(4)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss = loss or (lambda some: loss_of(model, *some))
    return capture(model, loss, batches, optimizer, name=kind, steps=3, graph=False, **options)


def planned(net) -> Plan:
    return small_plan(net, machine(1, WORLD.size), ["ring+dense"], 1000.0)


@check
def a_captured_model_is_planned_and_attached():
    """All trained parameters with their shapes; afterwards the model is as it was."""
    for kind in ("mlp", "cnn", "gpt", "lstm"):
        model = make(kind)
        net = captured(kind, model)
        want = {n: tuple(p.shape) for n, p in model.named_parameters()}
        assert {n: t.shape for n, t in net.tensors.items()} == want, kind
        assert net_file.from_data(net_file.to_data(net), "net") == net
        assert all(layer.forward >= 0 and layer.backward >= 0 for layer in net.layers)
        assert net.batch == 5
        with attach(model, planned(net)) as sync:
            got = train(kind, with_sync(sync), 1, model)
        if kind != "cnn":  # whose buffers attach makes equal
            same(got, train(kind, by_mpi, 1))


class Counting(nn.Module):
    """A layer beside buffers: written, expanded, replaced, grown and added in the forward pass."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.register_buffer("passes", torch.zeros(()), persistent=False)
        self.register_buffer("last", None, persistent=False)
        self.register_buffer("ones", torch.ones(()).expand(4))
        self.register_buffer("seen", torch.zeros(0))
        self.register_buffer("wide", torch.zeros(2))
        self.also = self.passes  # a script may hold a buffer, too

    def forward(self, x):
        self.passes += 1
        self.register_buffer("passes", self.passes)  # from now on in the state
        self.wide.data = torch.ones(3)
        self.last = x.detach()
        self.seen = torch.cat([self.seen, x.detach().mean(0)])
        self.layer.register_buffer("first", torch.ones(1))
        self._buffers = dict(self._buffers)
        self.passes = self.passes + 1
        self.norm = nn.BatchNorm1d(4, affine=False)
        return self.norm(self.layer(x))


@check
def buffers_are_afterwards_as_before():
    model = Counting()
    captured("mlp", model)
    assert model.passes == 0
    assert model.passes is model.also
    assert not hasattr(model, "norm")
    assert model.last is None
    assert not len(model.seen)
    assert torch.equal(model.wide, torch.zeros(2))
    assert list(model.state_dict()) == ["ones", "seen", "wide", "layer.weight", "layer.bias"]
    assert model.layer.weight.requires_grad


@check
def the_batch_is_that_of_the_first_one_and_at_least_one_sample():
    model = make("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.ones(8, 6)] * 3 + [torch.ones(3, 6)]

    def of(**options):
        made = capture(
            *(model, lambda some: model(some).mean(), batches, optimizer), graph=False, **options
        )
        return made.batch

    assert [of(steps=steps) for steps in (3, 4)] == [8, 8]  # one of them ends with the last
    assert said(lambda: of(batch=0)) == "batch must be at least 1, got 0"

    def build():
        return model, lambda some: model(some).mean(), None, batches

    assert said(lambda: model_work(build, batch=0)) == "batch must be at least 1, got 0"


@check
def layers_stand_in_the_order_in_which_gradients_are_ready():
    net = captured("gpt")
    names = [layer.name for layer in net.layers]
    ends = ["blocks.0.qkv", "blocks.0.out", "blocks.0.down", "blocks.1.qkv", "blocks.1.down"]
    assert [name for name in names if name in ends] == ends, names
    assert "words" in names[:2], names  # tied to the head, but complete last
    assert "tied: head.weight = words.weight" in net.source, net.source
    net = captured("mlp")
    assert [layer.name for layer in net.layers] == ["0", "2", "4"]
    # (5, 6) that enters and (8, 6) are kept for the first layer; parameters are not counted.
    assert net.layers[0].activation == 5 * 6 * 4, net.layers[0].activation
    assert net.layers[0].output == 5 * 8 * 4


@check
def frozen_parameters_dtypes_and_rows_are_in_the_net():
    model = nn.Sequential(nn.Embedding(100, 4, sparse=True), nn.Linear(4, 4))
    model[1].bias.requires_grad_(False)
    net = captured("lstm", model, lambda some: model(some[0]).square().mean())
    assert list(net.tensors) == ["0.weight", "1.weight"]
    law = net.tensors["0.weight"].sparsity
    assert law.law == "zipf", law
    assert 0.2 < law.density < 0.4, law  # 40 draws of 40 words of 100: 25
    assert "frozen: 1.bias" in net.source
    model = make("mlp").bfloat16()
    net = captured("mlp", model, lambda some: loss_of(model, some[0].bfloat16(), some[1]))
    assert {t.dtype for t in net.tensors.values()} == {"bfloat16"}


@check
def the_decay_of_large_gradients_and_what_attach_costs_are_in_the_net_and_samples_in_a_file():
    """`plan --max-error` measures errors on them."""
    model = nn.Sequential(nn.Embedding(100, 200), nn.Linear(200, 4))
    folder = Path(WORLD.bcast(tempfile.mkdtemp()))
    path = folder / "gradients.npz"
    net = captured("lstm", model, lambda some: model(some[0]).square().mean(), record=path)
    WORLD.Barrier()
    found = recorded_gradients.read(path, net)
    assert {n: len(g) for n, g in found.gradients.items()} == dict.fromkeys(net.tensors, 8)
    assert found.gradients["1.weight"].any()
    decays = {name: tensor.decay for name, tensor in net.tensors.items()}
    assert 0.1 < decays.pop("0.weight") < 1, decays
    assert set(decays.values()) == {0.0}  # biases and small ones stay dense
    assert "of handing gradients over" in net.source, net.source
    assert net.apply > 0
    WORLD.Barrier()
    if WORLD.rank == 0:
        path.unlink()
        folder.rmdir()


@check
def the_density_of_large_gradients_is_in_the_net():
    """Half of the columns are of inputs that are always zero."""
    inputs = torch.rand(8, 100)
    inputs[:, 50:] = 0.0
    tensors = of_inputs(nn.Linear(100, 200), (inputs,)).tensors
    law = tensors["weight"].sparsity
    assert (law.law, law.density, law.after(8)) == ("curve", 0.5, 0.5), law
    assert tensors["bias"].sparsity.law == "dense"


@check
def a_parameter_that_never_gets_a_gradient_is_refused_or_left_out():
    model = make("fork")
    model.odd = WORLD.rank == 1  # an arm for each rank
    text = said(lambda: captured("fork", model))
    assert "parameter 'third.weight' never got a gradient on any rank" in text, text
    net = captured("fork", model, find_unused_parameters=True)
    assert {layer.name for layer in net.layers} == {"left", "right", "head"}
    with attach(model, planned(net), find_unused_parameters=True) as sync:
        train("fork", with_sync(sync), 1, model)
        text = said(lambda: model.third(torch.zeros(1, 6)).sum().backward())
    assert "parameter 'third.bias' got a gradient, but the plan has no such" in text, text


@check
def what_cannot_be_captured_is_one_sentence():
    model = make("mlp")
    text = said(lambda: captured("mlp", model, lambda some: model(some[0])))
    assert "the loss must be one number that backward() can begin with, got [5, 4]" in text, text
    text = said(lambda: captured("mlp", make("mlp").double()))
    assert "parameter '0.weight' is float64" in text, text
    if WORLD.rank == 1:
        model[2] = nn.Linear(8, 8, bias=False)
    text = said(lambda: captured("mlp", model))
    assert "rank 1 trains '4.weight' of shape [4, 8]" in text, text
    assert "where rank 0 trains '2.bias' of shape [8]" in text, text
    scripted = make("mlp")
    scripted[2] = torch.jit.trace(scripted[2], torch.ones(1, 8))
    text = said(lambda: captured("mlp", scripted))
    assert "module '2' is TorchScript, which shows no times of its own; give the model" in text, (
        text
    )
    for made in (captured_by, meta_by):
        batches = [(torch.ones(2, 6),)]
        assert made(make("mlp").requires_grad_(False), batches) == "the model trains no parameter"
        text = made(nn.Sequential(nn.LazyLinear(4)), batches)
        assert "'0.weight' has no shape before the model's first forward pass; do one" in text, text
        text = made(make("mlp"), None)
        assert text.startswith("the batches must be something to iterate over, such as a l"), text
        assert text.endswith(", got NoneType"), text
    model = make("mlp")
    text = said(lambda: captured("mlp", model, lambda some: loss_of(model, *some[WORLD.rank :])))
    assert text.startswith("rank 1: the script failed: TypeError: loss_of() missing 1"), text


def captured_by(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return said(lambda: capture(model, lambda some: model(*some).mean(), batches, optimizer))


def meta_by(model, batches):
    return said(lambda: model_work(lambda: (model, lambda x: model(*x).mean(), None, batches)))


@check
def a_model_that_is_attached_is_captured_after_it_is_closed():
    model = make("mlp")
    with attach(model, planned(captured("mlp", model))):
        text = said(lambda: captured("mlp", model))
    assert text.startswith("the ranks exchange this model's gradients; capture it before"), text
    captured("mlp", model)


@check
def what_a_checkpoint_computes_again_is_backward():
    model, slept = make("again"), []

    def slow(module, inputs):
        if len(slept) % 2:  # the second time, in backward
            time.sleep(0.1)
        slept.append(module)

    model.first[2].register_forward_pre_hook(slow)
    net = captured("again", model)
    assert [layer.name for layer in net.layers] == ["first.0", "first.2", "first.4", "last"]
    assert sum(layer.forward for layer in net.layers) < 0.1
    assert sum(layer.backward for layer in net.layers) > 0.1


@check
def kinds_of_models_keep_all_their_parameters_and_say_how_sparse_they_are():
    draw = torch.Generator().manual_seed(WORLD.rank)
    rows, ids = torch.randn(64, 6, generator=draw), torch.randint(1000, (64, 2), generator=draw)
    words = torch.randint(1, 40, (4, 6), generator=draw)
    for model, inputs in ((Moe(), (rows,)), (Dlrm(), (rows, ids)), (Bert(), (words,))):
        net = of_inputs(model, inputs)
        assert set(net.tensors) == {n for n, _ in model.named_parameters()}
        laws = {n: t.sparsity.law for n, t in net.tensors.items() if "tables" in n}
        assert all(law == "zipf" for law in laws.values()), laws
        assert len(laws) == 2 * isinstance(model, Dlrm)
        assert net.optimizer > 0
        assert net.measured.threads == 1
        assert net.measured.ranks == WORLD.size
        assert net.measured.cores == len(os.sched_getaffinity(0))
        assert net.measured.working_set >= 2 * net.nbytes
        assert 0.0 < net.measured.alone <= 1.0


def of_inputs(model, inputs, loss=None):
    def mean(some):
        return model(*some).square().mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return capture(model, loss or mean, [inputs] * 3, optimizer, name="kind", steps=2, graph=False)


class Graph(nn.Module):
    """A layer whose outputs neighbours in a graph add up, by a sparse matrix."""

    def __init__(self, neighbours):
        super().__init__()
        self.layer, self.neighbours = nn.Linear(6, 4), neighbours

    def forward(self, x):
        return self.neighbours @ self.layer(x)


@check
def a_sparse_matrix_that_is_kept_has_the_bytes_of_its_indices_and_values():
    dense = 5 * 6 * 4 + 5 * 4 * 4  # inputs, and outputs that are squared
    for layout, indices in ((torch.sparse_coo, 2 * 5), (torch.sparse_csr, 6 + 5)):
        model = Graph(torch.eye(5).to_sparse(layout=layout))
        net = of_inputs(model, (torch.randn(5, 6),))
        assert net.layers[0].activation == dense + indices * 8 + 5 * 4


@check
def what_autocast_computes_in_16_bits_is_said():
    model = make("mlp")

    def loss(some):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(*some).float().square().mean()

    net = of_inputs(model, (torch.randn(5, 6),), loss)
    assert net.measured.precision == "float16"
    assert {t.dtype for t in net.tensors.values()} == {"float32"}


@check
def on_the_meta_device_a_model_has_the_layers_and_the_work_that_it_has_when_it_runs():
    def build(kind="gpt"):
        model = make(kind)
        return model, lambda some: loss_of(model, *some), None, [batch(kind, 0, 0)]

    net, measured = model_work(build), captured("gpt")
    assert sorted(net.tensors) == sorted(measured.tensors)
    found = {layer.name: layer for layer in net.layers}
    assert set(found) == {layer.name for layer in measured.layers}
    up = found["blocks.0.up"]  # 5 x 8 positions, 16 x 64
    assert (up.forward_flops, up.backward_flops) == (2.0 * 40 * 16 * 64, 4.0 * 40 * 16 * 64)
    assert up.forward_bytes >= 4 * (40 * 16 + 16 * 64 + 40 * 64)
    kept = {layer.name: layer.activation for layer in measured.layers}
    assert up.activation == kept["blocks.0.up"]
    assert net.measured is None
    assert net.batch == 5
    text = said(lambda: model_work(lambda: (1 / 0,)))
    assert "the script needs values, which the meta device has not: ZeroDivisionError" in text


@check
def on_the_meta_device_the_backward_of_a_convolution_is_twice_its_forward():
    """Once of the first one, whose input needs no gradient; in groups as without."""
    layers = (
        *(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 8, 3, padding=1, groups=8)),
        *(nn.Conv2d(8, 4, 3, stride=2, groups=2), nn.ConvTranspose2d(4, 6, 3, groups=2)),
    )
    model = nn.Sequential(*layers)
    net = model_work(lambda: (model, lambda x: model(x).mean(), None, [torch.ones(2, 4, 9, 9)]))
    work = [(layer.forward_flops, layer.backward_flops) for layer in net.layers]
    forward = [
        2.0 * 2 * 7 * 7 * 8 * 4 * 9,
        2.0 * 2 * 7 * 7 * 8 * 9,
        2.0 * 2 * 3 * 3 * 4 * 4 * 9,
        2.0 * 2 * 3 * 3 * 4 * 3 * 9,  # of a transposed one: for each element of its input
    ]
    assert work == [(forward[0], forward[0]), *((f, 2 * f) for f in forward[1:])], work


@check
def parameters_of_the_loss_are_afterwards_as_before():
    model, last = make("mlp"), torch.nn.Linear(4, 4)
    before = [p.detach().clone() for p in last.parameters()]
    optimizer = torch.optim.SGD([*model.parameters(), *last.parameters()], lr=0.1)
    batches = [batch("mlp", step, WORLD.rank) for step in range(2)]
    capture(model, lambda one: last(model(one[0])).square().mean(), batches, optimizer, steps=2)
    assert all(map(torch.equal, before, last.parameters()))
