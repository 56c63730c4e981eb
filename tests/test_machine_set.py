"""`--set KEY=VALUE`: another value of a machine for one command."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched import shipped
from commsched.cost.price import price
from commsched.errors import CommschedError
from commsched.exchange.registry import find_method
from commsched.machine import file
from commsched.machine.build import build
from commsched.machine.change import changed
from commsched.machine.devices import accelerator
from commsched.machine.fabric import HeldOut
from commsched.machine.model import resized
from commsched.net.bucket import BucketSpec
from tests.test_machine_new import order
from tests.test_quantity import parsers, refused

NETWORKED = [name for name in shipped.names("machines") if file.load(name).nodes > 1]


def test_every_command_that_takes_a_machine_takes_set() -> None:
    from commsched.cli import main as cli

    for parser in parsers(cli._parser(())):
        options = {o for action in parser._actions for o in action.option_strings}
        if "--machine" in options:
            assert "--set" in options, parser.prog


@pytest.mark.parametrize("name", NETWORKED)
@given(rate=st.integers(1, 400))
def test_a_set_port_has_that_rate_and_two_ranks_reach_the_same_share_of_it(
    name: str, rate: int
) -> None:
    machine = file.load(name)
    got = changed(machine, [f"nic={rate} Gbit/s"])
    assert machine.nic is not None
    assert got.nic is not None
    assert 1 / got.nic.per_byte == pytest.approx(rate / 8 * 1e9, rel=1e-9)
    before, after = (m.between.per_byte / m.nic.per_byte for m in (machine, got) if m.nic)
    assert after == pytest.approx(before, rel=1e-9)
    assert got.node_of_rank == machine.node_of_rank
    assert got.device == machine.device
    assert f"nic={rate} Gbit/s" in got.name


def test_a_port_and_the_link_behind_it_may_be_set_together_in_any_order() -> None:
    words = ["between=10 Gbit/s", "nic=20 Gbit/s"]
    for ordered in (words, words[::-1]):
        made = changed(file.load("summit"), ordered)
        assert made.nic is not None
        assert (8e-9 / made.between.per_byte, 8e-9 / made.nic.per_byte) == pytest.approx((10, 20))


def test_set_names_any_field_with_or_without_its_unit() -> None:
    machine = file.load("summit")
    for key in ("latency", "links.between.latency", "links.between.latency_us"):
        assert changed(machine, [f"{key}=9 us"]).between.latency == 9e-6
    assert changed(machine, ["links.between.latency_us=9"]).between.latency == 9e-6
    assert changed(machine, ["gpu=h100"]).device == accelerator("h100").device
    assert changed(machine, ["tflops=1000"]).device.flops == 1e15
    assert changed(machine, ["memory=32 GiB"]).device.memory == 2**35
    assert changed(machine, ["jitter=5%"]).jitter == 0.05
    assert (
        changed(machine, ["nodes=3", "gpus=2"]).node_of_rank == resized(machine, 3, 2).node_of_rank
    )
    ports = changed(machine, ["ports=2"]).nic
    assert ports is not None
    assert ports.per_node == 2
    with_port = changed(resized(file.load("localhost"), 2), ["nic=1 Gbit/s"])
    assert with_port.nic is not None
    assert with_port.between.points == ()


def test_set_names_a_level() -> None:
    tree = file.load("superpod-h100")
    unit = next(level for level in tree.levels if level.name == "unit")
    found = changed(tree, ["levels.unit.link.latency=9 us", "levels.unit.rails=2"])
    after = next(level for level in found.levels if level.name == "unit")
    assert (after.link.latency, after.rails) == (9e-6, 2)
    assert after.link.per_byte == unit.link.per_byte
    with pytest.raises(CommschedError, match=r"no 'levels.rack'; its levels: node, unit, pod$"):
        changed(tree, ["levels.rack.rails=1"])


def test_a_set_port_where_ranks_share_none_is_each_ranks_own() -> None:
    made = build(order(nodes=2, ranks=4, port=1e9))
    apart = replace(made, nic=None)
    spec, methods = BucketSpec.uniform(10**6), ("direct+dense", "hierarchical+dense")
    for method in map(find_method, methods):
        seconds = [
            price(method, spec, on, on.everyone).seconds
            for on in (apart, changed(apart, ["nic=8 Gbit/s"]), changed(made, ["nic=8 Gbit/s"]))
        ]
        assert seconds[1] == pytest.approx(seconds[0])
        assert seconds[2] > 1.5 * seconds[0]


def test_a_link_that_is_sold_with_the_device_follows_another_device() -> None:
    made = changed(build(order(device="a100")), ["gpu=h100"])
    want = build(order(device="h100"))
    assert (made.device, made.inside) == (want.device, want.inside)
    stated = build(order(device="a100", inside=100e9))
    assert changed(stated, ["gpu=h100"]).inside == stated.inside
    summit = file.load("summit")
    assert changed(summit, ["gpu=h100"]).inside == summit.inside


CELLS = (HeldOut(name="ring", predicted=1.0, measured=1.0),)
CURVE = ((1e3, 1e-3), (1e6, 1.0))


@pytest.mark.parametrize(
    ("word", "native", "held_out", "curve"),
    [
        ("jitter=5%", True, True, True),
        ("efficiency=0.5", True, True, True),
        ("inside=12.1 GB/s", True, True, True),  # as it is
        ("library=mpich", True, True, True),
        ("overlap=0.5", True, False, True),
        ("native_us=[[1000, 1]]", True, False, True),
        ("links.inside.latency=9 us", False, False, True),
        ("library=openmpi", False, False, True),
        ("nic=1 Gbit/s", False, False, True),
        ("gpu=a100", False, False, True),
        ("inside=12 GB/s", False, False, False),
    ],
)
def test_what_was_measured_is_forgotten_only_where_it_depends_on_another_value(
    word: str, native: bool, held_out: bool, curve: bool
) -> None:
    machine = replace(file.load("localhost"), native=CURVE, held_out=CELLS)
    made = changed(machine, [word])
    assert (made.native != (), made.held_out != ()) == (native, held_out)
    assert (made.inside.points == machine.inside.points) is curve


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("nic", "--set nic: expected KEY=VALUE, such as nic=25 Gbit/s"),
        ("nic=25", "--set nic=25: nic is a rate, such as 25 Gbit/s; got '25'"),
        ("nic=25 GB", "--set nic=25 GB: nic is a rate, such as 25 Gbit/s; got '25 GB'"),
        ("latency=9 GB", "links.between: latency_us is a time, such as 28 us; got '9 GB'"),
        ("colour=red", "unknown field `colour`"),
        ("links.up.latency=1", "--set links.up.latency=1: the machine has no 'links.up'"),
        ("levels.rack.rails=1", "the machine has no 'levels.rack'"),
        ("gpu=b9000", "no device named 'b9000'; known: a10, a100"),
        ("nodes=2.5", "--set nodes=2.5: nodes is a whole number, such as 8; got '2.5'"),
        ("nodes=0", "nodes must be at least 1, got 0"),
        ("jitter=-1", "jitter must be finite and at least 0, at most 10, got -1.0"),
    ],
)
def test_a_wrong_set_is_one_sentence(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(["price", "1000", "--machine", "summit", "--set", words], capsys)
    assert sentence in said


KEYS = st.sampled_from(["nic", "nodes", "gpu", "jitter", "links.inside", "name", "overrides", "x"])


@given(key=KEYS | st.text(max_size=12), value=st.text(max_size=12))
def test_any_set_is_taken_or_refused_in_one_sentence(key: str, value: str) -> None:
    sentence = ""
    try:
        changed(file.load("summit"), [f"{key}={value}"])
    except CommschedError as error:
        sentence = str(error)
    assert "\n" not in sentence


def test_a_port_may_be_set_where_bytes_between_nodes_cost_nothing() -> None:
    machine = file.load("ethernet-3to1")
    free = replace(machine, between=replace(machine.between, per_byte=0.0, points=()))
    assert 8 / changed(free, ["nic=25 Gbit/s"]).between.per_byte == pytest.approx(25e9)
