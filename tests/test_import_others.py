"""`commsched import` of traces that others recorded; traces/README.md says where they are from."""

import json

import pytest

from commsched.cli.main import main
from commsched.interchange import content
from commsched.interchange.registry import Options, import_file
from commsched.machine import file as machine_file
from commsched.net import file as net_file
from tests.support.jobs import ROOT
from tests.support.small_plans import machine

OTHERS = ROOT / "traces" / "imported" / "hta"


def imported(name):
    return import_file(content.read(OTHERS / name), Options(name="n"))


def test_a_resnet_50_under_ddp_with_nccl_has_its_buckets_and_what_was_not_hidden():
    found = imported("resnet50-ddp-nccl.json.gz")
    net = found.net
    assert net.numel == 25_557_032  # ResNet-50's parameters, in the buckets of DDP
    assert len(net.layers) == len(net.tensors) == 5
    sent = found.data["collectives"]
    assert sent["ncclKernel_AllReduce_RING_LL_Sum_float"] == {"per_step": 5, "bytes": 102228128}
    assert sent["ncclKernel_Broadcast_RING_LL_Sum_int8_t"]["per_step"] == 2  # buffers of BatchNorm
    # The annotations of the script's own say 104 and 103 ms on the host, of steps of 220 ms.
    assert 0.09 < found.data["forward_seconds"] < 0.11
    assert 0.07 < found.data["backward_seconds"] < 0.11
    assert 0.012 < found.data["communication_seconds"] < 0.0125
    assert 0.1 < found.data["overlap"] < 0.2
    # Nine kernels of 0.69 ms together in 14.7 ms of Python, with the gaps between them.
    assert 0.7e-3 < net.optimizer < 14.8e-3


def test_a_linear_layer_on_an_amd_gpu_has_its_kernels():
    found = imported("linear-mi250.json.gz")
    assert [t.shape for t in found.net.tensors.values()] == [(128,), (128, 128)]
    (layer,) = found.net.layers
    assert layer.name == "linear"
    # A batch of 5; the input asks for no gradient, so backward is one product.
    assert layer.forward_flops == layer.backward_flops == 2 * 5 * 128 * 128
    assert 0 < found.net.optimizer < 1e-4
    assert found.data["communication_seconds"] == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("alexnet-inference.json.gz", "no step has a forward and a backward pass with gradients"),
        ("add-operators-1.0.1.json.gz", "schema '1.0.1' is older than 1.0.2-chakra; record whole"),
    ],
)
def test_a_trace_without_what_a_plan_needs_says_what_to_record(name, said, tmp_path, capsys):
    assert main(["import", str(OTHERS / name), "-o", str(tmp_path / "net.json")]) == 2
    text = capsys.readouterr().err
    assert said in text, text
    assert len(text.splitlines()) == 1


@pytest.mark.by_day(0)
def test_the_resnet_of_others_is_planned_simulated_and_compared_with_its_trace(tmp_path, capsys):
    trace = str(OTHERS / "resnet50-ddp-nccl.json.gz")
    names = ("net.json", "plan.json", "predicted.json", "machine.json")
    net, plan, predicted, on = (str(tmp_path / name) for name in names)
    machine_file.write(on, machine(1, 2))
    assert main(["import", trace, "-o", net, "--batch", "32"]) == 0
    assert net_file.read(net).batch == 32
    how = ["--machine", on, "--compute", "measured", "--planner", "ddp-25mb"]
    assert main(["plan", net, *how, "-o", plan]) == 0
    assert main(["simulate", plan, "-o", predicted]) == 0
    capsys.readouterr()
    assert main(["compare", predicted, trace, "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)
