"""Capture of compiled models: what is compiled stays whole, and counts as one layer."""

import importlib.util
import sys

import pytest

from tests.support.jobs import Job

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

PROGRAM = """
import torch
import torch._dynamo.utils
from commsched.torch import capture
from tests.support.torch_nets import batch, loss_of, make

def layers(kind, change):
    model = make(kind)
    model = change(model) or model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [batch(kind, step, 0) for step in range(3)]
    net = capture(model, lambda some: loss_of(model, *some), batches, optimizer, steps=2)
    assert {n: t.shape for n, t in net.tensors.items()} == {
        n.replace("_orig_mod.", ""): tuple(p.shape) for n, p in model.named_parameters()
    }
    return [layer.name for layer in net.layers if layer.forward > 0]

def block(model):
    model.blocks[0] = torch.compile(model.blocks[0], backend="aot_eager")

def whole(model):
    return torch.compile(model, backend="aot_eager")

def in_place(model):
    model.blocks[1].compile(backend="aot_eager")

assert layers("mlp", whole) == ["OptimizedModule"]
found = layers("gpt", block)
assert "blocks.0" in found and "blocks.1.up" in found, found
assert not any(name.startswith("blocks.0.") for name in found), found
found = layers("gpt", in_place)
assert "blocks.1" in found and "blocks.0.up" in found, found
assert not torch._dynamo.utils.counters["graph_break"]  # by a hook inside
print("all right")
"""


def test_what_is_compiled_is_one_layer():
    with Job(1, [sys.executable, "-c", PROGRAM], variables={"OMP_NUM_THREADS": "1"}) as job:
        done = job.wait(200)
    assert "all right" in done.output, done.output
