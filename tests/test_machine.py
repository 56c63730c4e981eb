"""Machines and machine files."""

import copy
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsched import shipped
from commsched.errors import CommschedError
from commsched.machine import file
from commsched.machine.fabric import Fabric, HeldOut
from commsched.machine.model import CodecRate, Device, Link, Machine, Nic, resized
from commsched.records import schema
from tests.support import sampling
from tests.support.pages import ROOT

LINK = Link(latency=1e-6, overhead=2e-7, per_byte=1e-9, source="s")
DEVICE = Device(name="d", memory=1e9, bandwidth=1e9, flops=1e12, source="s")


def machine(nodes: int = 2, lanes: int = 3, **fields: object) -> Machine:
    base = Machine(
        name="m", node_of_rank=(0,), inside=LINK, between=LINK, nic=None, device=DEVICE, source="s"
    )
    return replace(resized(base, nodes, lanes), **fields)  # type: ignore[arg-type]


FILE = {
    "format": "commsched-machine/1",
    "name": "two",
    "source": "made up for a test",
    "nodes": 2,
    "lanes": 2,
    "links": {
        "inside": {
            "latency_us": 0.3,
            "overhead_us": 0.1,
            "bandwidth_GBps": 12.1,
            "points_us": [[0, 0], [1024, 0.5], [4096, 1.5]],
            "busy": 0.4,
            "source": "s",
        },
        "between": {"latency_us": 3, "overhead_us": 1, "bandwidth_GBps": None, "source": "s"},
    },
    "nic": {"per_node": 1, "bandwidth_GBps": 3.3, "source": "s"},
    "overrides": [
        {
            "node": 1,
            "between": {
                "latency_us": 30,
                "overhead_us": 1,
                "bandwidth_GBps": 0.7,
                "source": "a slow host",
            },
        }
    ],
    "device": {
        "name": "d",
        "memory_GB": 16.1,
        "bandwidth_GBps": 900,
        "tflops": 15.7,
        "efficiency": 0.3,
        "codecs": {
            "coo": {
                "encode_GBps": 7,
                "add_GBps": 3.3,
                "decode_GBps": None,
                "fixed_us": 4,
                "fixed_add_us": 6,
                "source": "s",
            }
        },
        "source": "s",
    },
    "jitter": 0.1,
    "overlap": 0.9,
    "native_us": [[1024, 30], [4096, 40.5]],
    "fabric": {
        "hosts": ["h0", "h1"],
        "ranks": [2, 2],
        "mpi": "MPICH 5.0.2",
        "transport": "ch4:ofi tcp",
        "cores": 2,
        "processor": "p",
    },
    "held_out": [{"name": "ring, 1 MB", "predicted_us": 1030, "measured_us": 1000.5}],
}


def test_a_machine_file_says_what_it_means() -> None:
    two = file.from_data(FILE, "here")
    assert two.node_of_rank == (0, 0, 1, 1)
    assert two.inside.latency == pytest.approx(3e-7)
    assert two.between.per_byte == 0.0
    assert two.nic is not None
    assert two.nic.per_node == 1
    assert two.nic.per_byte == pytest.approx(1 / 3.3e9)
    assert two.overrides[1].per_byte == pytest.approx(1 / 0.7e9)
    assert two.device.memory == pytest.approx(16.1e9)
    assert two.device.flops == pytest.approx(15.7e12)
    assert two.device.codecs["coo"].add == pytest.approx(1 / 3.3e9)
    assert two.inside.busy == 0.4
    coo = two.device.codecs["coo"]
    assert [coo.fixed, coo.per_add, coo.per_decode] == pytest.approx([4e-6, 6e-6, 4e-6])
    assert two.native[1] == pytest.approx((4096, 40.5e-6))
    assert two.fabric is not None
    assert two.fabric.hosts == ("h0", "h1")
    assert two.fabric.ranks == two.ranks_of_node == (2, 2)
    assert two.held_out[0].predicted == pytest.approx(1.03e-3)
    assert two.held_out[0].error == pytest.approx(29.5 / 1000.5)
    assert float(two.inside.wire(2048)) == pytest.approx(0.5e-6 + 1e-6 / 3)


rates = st.floats(1e-6, 1e6)


@given(us=st.floats(0, 1e9), rate=rates, jitter=st.floats(0, 9), overlap=st.floats(0, 1))
def test_reading_and_writing_a_machine_is_a_fixed_point(
    us: float, rate: float, jitter: float, overlap: float
) -> None:
    data = copy.deepcopy(FILE)
    data["links"]["between"] |= {"latency_us": us, "bandwidth_GBps": rate}  # type: ignore[index]
    data["device"]["codecs"]["coo"] |= {"add_GBps": rate, "fixed_us": us}  # type: ignore[index]
    data["held_out"] = [{"name": "x", "predicted_us": 1 + us / 1e6, "measured_us": 2.3}]
    data |= {"jitter": jitter, "overlap": overlap}
    once = file.from_data(data, "here")
    assert file.from_data(file.to_data(once), "here") == once
    assert file.to_data(file.from_data(file.to_data(once), "here")) == file.to_data(once)


def test_a_machine_built_in_memory_can_be_written() -> None:
    built = machine(nodes=3, lanes=2, nic=Nic(per_node=2, per_byte=0.0))
    again = file.from_data(file.to_data(built), "here")
    assert again.node_of_rank == built.node_of_rank
    assert again.nic is not None
    assert again.nic.per_byte == 0.0
    assert not {"fabric", "held_out"} & file.to_data(built).keys()


def test_an_irregular_placement_survives() -> None:
    odd = machine(node_of_rank=(1, 0, 0, 2, 1))
    data = file.to_data(odd)
    assert data["node_of_rank"] == (1, 0, 0, 2, 1)
    assert file.from_data(json.loads(json.dumps(data)), "here").node_of_rank == odd.node_of_rank
    with pytest.raises(CommschedError, match="different numbers of ranks"):
        resized(odd, nodes=2)


@given(nodes=st.integers(1, 40), lanes=st.integers(1, 9))
def test_a_resized_machine_has_the_wanted_counts(nodes: int, lanes: int) -> None:
    fabric = Fabric(hosts=("a", "b"), ranks=(3, 3), mpi="m", transport="t", cores=1, processor="p")
    cell = HeldOut(name="x", predicted=1.0, measured=1.1)
    measured: dict[str, object] = {"native": ((1.0, 1.0),), "held_out": (cell,), "fabric": fabric}
    old = machine(overrides={0: LINK, 1: LINK}, **measured)
    new = resized(old, nodes, lanes)
    assert (new.nodes, new.everyone.lanes, new.size) == (nodes, lanes, nodes * lanes)
    assert set(new.overrides) == {0, 1} & set(range(nodes))
    resized_away = (nodes, lanes) != (2, 3)
    assert (new.native == (), new.held_out == ()) == (resized_away, resized_away)
    assert new.fabric == fabric
    assert new.ranks_of_node == (lanes,) * nodes
    assert resized(new, nodes=2).everyone.lanes == lanes
    assert resized(old) == old


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"node_of_rank": ()}, "1 to 1048576 ranks, got 0"),
        ({"node_of_rank": (0, 2)}, "numbered 0 to 1"),
        ({"node_of_rank": (0, -1)}, "numbered 0 to 1"),
        ({"overrides": {5: LINK}}, "override of node 5"),
        ({"overlap": 1.5}, r"overlap must be in \[0, 1\], got 1.5"),
        ({"jitter": float("nan")}, "jitter must be finite"),
        ({"native": ((4.0, 1.0), (2.0, 2.0))}, "out of order"),
    ],
)
def test_a_machine_that_cannot_be_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(CommschedError, match=message):
        machine(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["latency_us", "overhead_us"])
@pytest.mark.parametrize("place", ["inside", "between"])
def test_a_latency_of_days_is_refused_in_every_unit(key: str, place: str, tmp_path: Path) -> None:
    data = file.file_data(machine(fabric=None))
    refused = {1e7: f"{key} 1e+07 is 10000000 us, more than a second", 1e12: "at most 3600 s, got"}
    for value, reason in {**refused, "1e12 us": "at most 3600 s, got"}.items():
        links = {**data["links"], place: {**data["links"][place], key: value}}
        (tmp_path / "m.json").write_text(json.dumps({**data, "links": links}))
        with pytest.raises(CommschedError, match=re.escape(reason)):
            file.read(tmp_path / "m.json")


def test_rates_that_cannot_be_are_refused() -> None:
    for broken in (-1.0, float("inf"), float("nan")):
        with pytest.raises(CommschedError, match="latency must be finite"):
            Link(latency=broken, overhead=0.0, per_byte=0.0)
        with pytest.raises(CommschedError, match="codec: add must be finite"):
            CodecRate(encode=0.0, add=broken, decode=0.0)
        with pytest.raises(CommschedError, match="device: flops must be finite"):
            Device(name="d", memory=1.0, bandwidth=1.0, flops=broken)


@pytest.mark.parametrize("place", [("links", "inside"), ("nic",), ("device",), ()])
@pytest.mark.parametrize("source", [None, " "])
def test_every_section_needs_a_source(place: tuple[str, ...], source: str | None) -> None:
    broken: dict[str, object] = copy.deepcopy(FILE)
    section = broken
    for key in place:
        section = section[key]  # type: ignore[assignment]
    if source is None:
        del section["source"]
    else:
        section["source"] = source
    with pytest.raises(CommschedError, match="source"):
        file.from_data(broken, "here")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"node_of_rank": [0, 1]}, "either `nodes` and `lanes`, or `node_of_rank`, got nodes and"),
        ({"lanes": None}, "got nodes"),
        ({"nodes": 10**12}, "1 to 1048576 ranks, got 1000000000000 x 2"),
        ({"nodes": 0}, "nodes must be at least 1, got 0"),
        ({"native_us": [[1, 2, 3]]}, "expected `array` of length 2, got 3 - at `.native_us"),
        ({"lanes": 2.5}, "expected `int | null`, got `float` - at `.lanes`; it is 2.5"),
        ({"colour": "red"}, "unknown field `colour`; allowed: format, name, source, nodes"),
        ({"format": "commsched-net/1"}, "this is a net file, and a machine is expected"),
    ],
)
def test_a_bad_machine_file_is_explained(change: dict[str, object], message: str) -> None:
    with pytest.raises(CommschedError, match=f"^m.json: .*{message}"):
        file.from_data(FILE | change, "m.json")


def test_a_rate_of_zero_names_its_place() -> None:
    broken = copy.deepcopy(FILE)
    broken["links"]["inside"]["bandwidth_GBps"] = 0  # type: ignore[index]
    with pytest.raises(CommschedError) as error:
        file.from_data(broken, "m.json")
    assert str(error.value) == (
        "m.json: links.inside: bandwidth_GBps must be in [1e-09, 1e+09] or null, got 0.0"
    )


@settings(max_examples=sampling.examples(300))
@given(data=st.data())
def test_a_damaged_machine_gives_one_sentence_or_a_machine(data: st.DataObject) -> None:
    tree = copy.deepcopy(FILE)
    places: list[tuple[object, object]] = []

    def walk(node: object) -> None:
        keys = (
            node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        )
        for key in keys:
            places.append((node, key))
            walk(node[key])  # type: ignore[index]

    walk(tree)
    node, key = data.draw(st.sampled_from(places))
    values: list[object] = [
        -1,
        -0.5,
        0,
        1e300,
        10**30,
        True,
        None,
        "",
        "x",
        "a\nb",
        [],
        [1],
        {},
        [[2, 1], [1, 2]],
    ]
    if data.draw(st.booleans()):
        del node[key]  # type: ignore[attr-defined]
    else:
        node[key] = data.draw(st.sampled_from(values))  # type: ignore[index]
    complaint = ""
    try:
        file.to_data(file.from_data(tree, "m.json"))
    except CommschedError as error:
        complaint = str(error)
    assert not complaint or complaint.startswith("m.json: ")
    assert "\n" not in complaint


@given(data=st.data())
def test_torn_and_random_bytes_give_one_sentence(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = json.dumps(FILE).encode()
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    path = tmp_path_factory.getbasetemp() / "torn.json"
    path.write_bytes(data.draw(st.sampled_from([cut, data.draw(st.binary(max_size=40))])))
    with pytest.raises(CommschedError, match=r"torn\.json: "):
        file.read(path)


def test_a_written_machine_is_read_again(tmp_path: Path) -> None:
    file.write(tmp_path / "m.json", machine())
    assert file.load(tmp_path / "m.json") == machine()
    with pytest.raises(CommschedError, match=r"no shipped machine named 'sumit'; known: .*summit"):
        file.load("sumit")


def test_a_measured_curve_goes_on_with_the_last_slope() -> None:
    link = Link(latency=0.0, overhead=0.0, per_byte=2.0, points=((0.0, 0.0), (10.0, 30.0)))
    np.testing.assert_allclose(link.wire(np.array([0.0, 5.0, 10.0, 11.0])), [0.0, 15.0, 30.0, 32.0])


SHIPPED = sorted(shipped.folder("machines").glob("*.json"))
UNITS = {
    "us": (1e3, "ms"),
    "GBps": (0.125, "Gbit/s"),
    "GB": (1e-3, "MB"),
    "tflops": (1e-3, "Gflop/s"),
}


def with_units(data: object, key: str = "") -> object:
    """Write every number of a file whose key has a unit as a text with another unit."""
    if isinstance(data, dict):
        return {name: with_units(value, name) for name, value in data.items()}
    if isinstance(data, list) and key == "overrides":
        return [with_units(value) for value in data]
    unit = UNITS.get(key.rpartition("_")[2])
    if unit is None or not isinstance(data, int | float):
        return data
    return f"{data / unit[0]:.15g} {unit[1]}"


@pytest.mark.parametrize("data", [FILE, *map(json.loads, map(Path.read_text, SHIPPED))])
def test_a_number_of_a_file_may_carry_its_own_unit(data: dict[str, object]) -> None:
    spelled = with_units(data)
    assert " Gbit/s" in json.dumps(spelled)
    assert file.from_data(spelled, "m") == file.from_data(data, "m")


@given(text=st.text(max_size=12), key=st.sampled_from(["latency_us", "bandwidth_GBps"]))
def test_a_text_in_the_place_of_a_number_is_read_or_refused_in_one_sentence(
    text: str, key: str
) -> None:
    data = copy.deepcopy(FILE)
    data["links"]["between"][key] = text  # type: ignore[index]
    sentence = "m: "
    try:
        file.from_data(data, "m")
    except CommschedError as error:
        sentence = str(error)
    assert sentence.startswith("m: ")
    assert "\n" not in sentence


def test_delays_are_microseconds_in_the_file():
    made = machine(startup=9e-6, wakeup=3e-6, handover=2e-6, burst=50e-6)
    data = file.to_data(made)
    kept = [data[f"{name}_us"] for name in ("startup", "wakeup", "handover", "burst")]
    assert kept == [9.0, 3.0, 2.0, 50.0]


def test_what_older_versions_measured_beside_the_cores_is_read_and_forgotten() -> None:
    older = {**FILE, "slowed": 1.7, "alone": 0.5, "restart_us": 3.0}
    assert file.from_data(older, "m") == file.from_data(FILE, "m")


def test_the_page_of_models_has_every_key_of_a_machine_and_no_other():
    page = (ROOT / "models/README.md").read_text(encoding="utf-8")
    rows = page.split("## Machines")[1].split("\n\n")[1].splitlines()[2:]
    told = {key.split(".")[0] for row in rows for key in re.findall("`([^`]+)`", row.split("|")[1])}
    taken = set(schema(Machine)["$defs"]["Machine"]["properties"]) - set(Machine.GONE)
    assert told == taken | {"levels"}
