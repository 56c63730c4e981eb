"""The shipped nets and machines."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from commsched import shipped
from commsched.machine import file as machines
from commsched.net import file as nets
from commsched.net.generate import profiled
from commsched.net.generate import shipped as generate

NETS, MACHINES = shipped.names("nets"), shipped.names("machines")


def test_the_promised_files_are_shipped() -> None:
    gpt = {f"gpt3-{size}" for size in ("1.3b", "2.7b", "6.7b", "13b", "175b")}
    measured = {"vgg16", "resnet50", "resnet101", "gpt2", "lstm", "bert-base"}
    convolutional = {"vgg19", "wide-resnet101", "resnet32", "inception-v4"}
    experts, zen = {"gpt-moe-8", "deepspeed-moe-52b"}, {"deepfm", "nmt", "lm1b"}
    assert set(NETS) == gpt | experts | measured | convolutional | zen | {"alexnet"}
    clouds = {"p3.16xlarge", "p3dn.24xlarge"}
    clusters = {"summit", "comet", "a100-4xhdr200", "dgx-a100", "h100-8x400"}
    trees = {"superpod-h100", "gb200-nvl72-pair", "tpu-v5p-4x4x4", "ethernet-3to1"}
    assert set(MACHINES) == clouds | clusters | trees | {"localhost"}


def test_generating_the_nets_again_gives_the_committed_bytes(tmp_path: Path) -> None:
    generate.main(tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_bytes() for path in shipped.folder("nets").glob("*.json")}
    assert made == kept


@pytest.mark.by_day(7)
@pytest.mark.parametrize("name", NETS)
def test_a_shipped_net_survives_a_round_trip(name: str, tmp_path: Path) -> None:
    net = nets.load(name)
    assert net.name == name
    assert net.source
    nets.write(tmp_path / "again.json", net)
    assert nets.read(tmp_path / "again.json") == net
    device = machines.load("summit").device
    assert all(min(net.seconds(layer, device)) >= 0 for layer in net.layers)
    assert sum(sum(net.seconds(layer, device)) for layer in net.layers) > 0


@pytest.mark.parametrize("name", MACHINES)
def test_a_shipped_machine_survives_a_round_trip_and_names_its_sources(name: str) -> None:
    path = shipped.path_of("machines", name)
    machine = machines.read(path)
    assert machine.name == name
    assert machines.from_data(machines.to_data(machine), "here") == machine

    def sections(node: object) -> list[dict[str, object]]:
        children = list(node.values()) if isinstance(node, dict) else []
        found = [s for child in children for s in sections(child)]
        numbers = any(isinstance(child, int | float) for child in children)
        return [*found, node] if isinstance(node, dict) and numbers else found

    for section in sections(json.loads(path.read_text())):
        assert str(section["source"]).strip(), section


PARAMETERS = {
    # As counted by the libraries that publish them, and by the profile itself.
    "vgg16": 138_357_544,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "gpt2": 124_439_808,
    "vgg19": 143_667_240,
    "wide-resnet101": 126_886_696,
    "inception-v4": 42_679_816,
    # Convolutions, 10 x 65 at the end, and scale and shift of 31 normalisations.
    "resnet32": 432 + 23_040 + 87_552 + 350_208 + 650 + 2_272,
    # Krizhevsky et al. without groups: the 250 MB of Wang et al., HPDC 2020.
    "alexnet": 62_378_344,
    # 85,974,278: 33,278 x 1,500 tied embedding, two LSTM layers of 1,500, decoder bias.
    "lstm": 33_278 * 1_501 + 2 * (2 * 6_000 * 1_500 + 2 * 6_000),
    # BERT-base without pooler, vocabulary padded to 30,528, question-answering head.
    "bert-base": 30_528 * 768 + 514 * 768 + 2 * 768 + 12 * 7_087_872 + 2 * 769,
}


@pytest.mark.parametrize(("name", "numel"), PARAMETERS.items())
def test_parameter_counts_are_the_published_ones(name: str, numel: int) -> None:
    assert nets.load(name).numel == numel


MULTIPLIES = {  # 10^9 per image, forward, as the libraries that publish the nets count them
    "vgg19": 19.63,
    "wide-resnet101": 22.75,
    "inception-v4": 12.25,
    "resnet32": 0.0689,
}


@pytest.mark.parametrize(("name", "billions"), MULTIPLIES.items())
def test_flops_of_convolutional_nets_are_the_published_ones(name: str, billions: float) -> None:
    net = nets.load(name)
    forward = sum(layer.forward_flops for layer in net.layers) / net.batch
    assert forward == pytest.approx(2e9 * billions, rel=2e-3)  # printed with 3 or 4 digits
    assert sum(x.backward_flops for x in net.layers) == 2 * forward * net.batch


def test_branches_of_a_convolutional_net_meet_again() -> None:
    net = nets.load("inception-v4")
    assert len(net.layers[-1].after) == 6  # branches of the last block
    around = {layer.name: layer.after for layer in nets.load("resnet32").layers}
    assert around["layer3.4.conv2"] == ("layer3.4.conv1", "layer3.3.conv2")
    assert around["fc"] == ("layer3.4.conv2",)


@pytest.mark.parametrize(
    ("name", "dense", "embedding"),
    [("lm1b", 20e6, 406e6), ("deepfm", 68e6, 214e6), ("nmt", 31e6, 112e6)],
)
def test_embedding_nets_have_the_printed_sizes(name: str, dense: float, embedding: float) -> None:
    net = nets.load(name)
    sparse = net.tensors["embedding.weight"]
    assert sparse.numel == pytest.approx(embedding, rel=0.002)  # printed with 3 digits
    assert net.numel - sparse.numel == dense


def test_zen_densities_are_kept() -> None:
    law = nets.load("nmt").tensors["embedding.weight"].sparsity
    assert float(law.after(1)) == 0.0247
    assert float(law.after(128)) == pytest.approx(0.615)
    assert float(nets.load("lm1b").tensors["embedding.weight"].sparsity.after(1)) == 0.0113


@pytest.mark.parametrize(("name", "size"), generate.GPT_SIZES.items())
def test_gpt_sizes_follow_the_closed_forms(name: str, size: tuple[int, int, int]) -> None:
    net, (l, h, a), s, v = nets.load(name), size, 2048, 50257  # noqa: E741, as in the papers
    assert net.numel == 12 * l * h**2 + 13 * l * h + (v + s) * h + 2 * h
    published = float(name.removeprefix("gpt3-").removesuffix("b")) * 1e9
    assert net.numel == pytest.approx(published, rel=0.02)  # Brown et al. print 2 to 3 digits
    # Narayanan et al., SC 2021: 96 B s l h^2 (1 + s/6h + V/16lh) counts the forward pass twice.
    forward = 24 * s * l * h**2 * (1 + s / (6 * h) + v / (12 * l * h))
    assert sum(x.forward_flops for x in net.layers) == pytest.approx(forward, rel=1e-12)
    assert sum(x.backward_flops for x in net.layers) == pytest.approx(2 * forward, rel=1e-12)
    # Korthikanti et al., 2022, equation 1, and their terms for input, last norm, head and loss.
    kept = l * s * h * (34 + 5 * a * s / h) + 5 * s * h + 4 * s * v
    assert sum(x.activation for x in net.layers) == pytest.approx(kept, rel=1e-12)


def test_the_largest_net_has_a_thousand_tensors() -> None:
    assert len(nets.load("gpt3-175b").tensors) >= 1000


@pytest.mark.parametrize(("name", "theirs"), [(n, t) for n, (t, *_) in generate.PROFILED.items()])
def test_profiled_nets_keep_every_tensor_and_all_seconds(name: str, theirs: str) -> None:
    gaps, net = profiled.read(generate.PROFILES).models[theirs], nets.load(name)
    assert {t: x.numel for t, x in net.tensors.items()} == {g.name: g.numel for g in gaps}
    assert list(net.tensors) == [g.name for g in reversed(gaps)]
    total = sum(layer.backward or 0.0 for layer in net.layers)
    assert total == pytest.approx(sum(g.gap_us for g in gaps) * 1e-6, rel=1e-9)
    assert all(layer.forward == pytest.approx((layer.backward or 0) / 2) for layer in net.layers)
    assert [x.after for x in net.layers] == [(), *((x.name,) for x, _ in pairwise(net.layers))]
    matrices = [t for t in net.tensors.values() if re_matrix(t.name) and t.numel > 4096]
    assert all(len(t.shape) > 1 for t in matrices)


@pytest.mark.parametrize(
    ("name", "gigaflops"), [("vgg16", 30.94), ("resnet50", 8.18), ("resnet101", 15.60)]
)
def test_profiled_nets_have_the_flops_of_their_architecture(name: str, gigaflops: float) -> None:
    """torchvision's model pages: 15.47, 4.09 and 7.80 billion multiply-adds per image of 224."""
    forward = sum(layer.forward_flops for layer in nets.load(name).layers)
    assert forward / 32 == pytest.approx(gigaflops * 1e9, rel=1e-3)


def re_matrix(name: str) -> bool:
    """Whether the name is one of a matrix, not of a bias or a norm's scale."""
    return name.endswith("weight") and "bn" not in name and "downsample.1" not in name


def test_summit_is_the_one_of_the_paper() -> None:
    summit = machines.load("summit")
    assert summit.everyone.lanes == 6
    assert 1e-9 / summit.inside.per_byte == pytest.approx(50.0)
    assert summit.nic is not None
    assert summit.nic.per_node == 1
    assert 1e-9 / summit.nic.per_byte == pytest.approx(12.5)
    assert summit.device.flops == 125e12
