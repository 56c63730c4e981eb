"""Capture of what layers read: by torch.export, else a chain by hooks; the source says which."""

import importlib.util
import sys

import pytest

from tests.support.jobs import Job

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

PROGRAM = """
import torch
from commsched.net import file as net_file
from commsched.torch import capture
from tests.support.torch_kinds import Bert, Dlrm, Moe
from tests.support.torch_nets import batch, loss_of, make

def captured(model, inputs, autocast=False):
    def loss(some):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            return model(*some).float().square().mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = torch.get_rng_state()
    net = capture(model, loss, [inputs] * 3, optimizer, steps=2)
    assert torch.equal(before, torch.get_rng_state())
    assert net_file.from_data(net_file.to_data(net), "net") == net
    return {layer.name: set(layer.after) for layer in net.layers}, net.source

EXPORTED = "what a layer reads by torch.export"
for kind, autocast in (("gpt", False), ("gpt", True)):
    reads, source = captured(make(kind), batch(kind, 0, 0)[:1], autocast)
    assert EXPORTED in source, source
    assert reads["blocks.0.one"] == {"places"} or reads["blocks.0.one"] == {"words"}, reads
    assert reads["blocks.0.qkv"] == {"blocks.0.one"}
    assert reads["blocks.0.two"] == {"blocks.0.out"}
    assert reads["blocks.0.down"] == {"blocks.0.up", "blocks.0.out"}  # the sum that goes on
    assert reads["blocks.1.one"] == {"blocks.0.down"}
reads, source = captured(make("again"), batch("again", 0, 0)[:1])  # checkpoints
assert EXPORTED in source, source
assert reads["last"] == {"first.4"}, (reads, source)
reads, source = captured(make("lstm"), batch("lstm", 0, 0)[:1])
assert (reads["lstm"], reads["head"]) == ({"words"}, {"lstm"}), (reads, source)
words = torch.randint(1, 40, (4, 6))
reads, source = captured(Bert(), (words,))
first = "encoder.layers.0."
assert reads[first + "linear1"] == {first + "norm1"}, reads
assert reads[first + "norm2"] == {first + "linear2"}, reads
assert reads[first + "linear2"] == {first + "linear1", first + "norm1"}  # the sum of both
assert reads["pooled"] == {"encoder.layers.1.norm2"}
reads, source = captured(Dlrm(), (torch.randn(4, 6), torch.randint(1000, (4, 2))))
assert reads["top"] == {"bottom", "tables.0", "tables.1"}
assert reads["bottom"] == reads["tables.0"] == reads["tables.1"] == set()
reads, source = captured(Moe(), (torch.randn(64, 6),))
assert "a chain, by hooks alone (GuardOnDataDependentSymNode" in source, source
assert reads == {"gate": set(), "experts": {"gate"}}, reads
model = make("mlp")
reads, source = captured(torch.compile(model, backend="aot_eager"), batch("mlp", 0, 0)[:1])
assert "by hooks alone (it does not look into compiled modules)" in source, source
print("all right")
"""


def test_torch_export_says_what_layers_read_where_it_can():
    with Job(1, [sys.executable, "-c", PROGRAM], variables={"OMP_NUM_THREADS": "1"}) as job:
        done = job.wait(300)
    assert "all right" in done.output, done.output
