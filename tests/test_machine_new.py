"""Machines from a few words: ports, rates, devices, and values that are asked about."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched import shipped
from commsched.cli.main import check_output, main
from commsched.errors import CommschedError
from commsched.machine import file
from commsched.machine.build import Order, build
from commsched.machine.devices import accelerator, accelerators, recognised
from commsched.machine.library import default_library
from commsched.machine.ports import network_data, reach
from commsched.machine.sane_numbers import check_border
from tests.test_quantity import refused

NETWORKED = [name for name in shipped.names("machines") if file.load(name).nodes > 1]
NEW = ["machine", "new", "--gpus", "8", "--nodes", "4", "--gpu", "a100", "--net", "25 Gbit/s", "-o"]


def order(**fields: Any) -> Order:
    return Order(
        **{"name": "m", "nodes": 4, "ranks": 8, "device": "v100", "port": 25e9 / 8} | fields
    )


@given(
    nodes=st.integers(2, 9),
    ranks=st.integers(1, 9),
    ports=st.integers(1, 9),
    rate=st.integers(1, 800),
)
def test_ranks_share_the_ports_of_their_node(nodes: int, ranks: int, ports: int, rate: int) -> None:
    machine = build(order(nodes=nodes, ranks=ranks, ports=ports, port=rate * 1e9 / 8))
    found = reach(machine)
    assert found is not None
    port = rate / 8 * 1e9
    assert found.per_rank == pytest.approx(port / -(-ranks // min(ports, ranks)), rel=1e-9)
    assert found.per_node <= ports * port * (1 + 1e-9)
    assert found.per_node <= ranks * found.per_rank * (1 + 1e-9)
    own = replace(machine, nic=None)
    data = network_data(own)
    assert data is not None
    assert data["bits_per_second_per_rank"] == pytest.approx(rate * 1e9, rel=1e-9)
    assert data["bits_per_second_per_node"] == pytest.approx(rate * 1e9 * ranks, rel=1e-9)


def test_machine_new_writes_a_file_that_every_command_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lab.json"
    assert main([*NEW, str(path)]) == 0
    network = (
        "network: 25 Gbit/s (3.125 GB/s) per node (1 port for 8 ranks),"
        " 3.125 Gbit/s (390.6 MB/s) per rank if all send"
    )
    assert network in capsys.readouterr().out
    machine = file.read(path)
    assert (machine.name, machine.nodes, machine.size) == ("lab", 4, 32)
    assert machine.device == accelerator("A100").device
    plan = tmp_path / "plan.json"
    words = ["plan", "lstm", "--machine", str(path), "--planner", "ddp-25mb", "-o", str(plan)]
    for command in (["show", str(path)], words, ["show", str(plan)]):
        assert main(command) == 0
        assert network in capsys.readouterr().out.splitlines()
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["network"] == {
        "bits_per_second_per_node": 25e9,
        "bits_per_second_per_rank": 3.125e9,
    }


@pytest.mark.parametrize("name", list(accelerators()))
def test_every_known_device_has_sources_and_makes_a_machine(name: str) -> None:
    sold = accelerators()[name]
    assert accelerator(name.upper()) is sold
    assert "data sheet" in sold.device.source
    assert recognised(sold.device.name) == sold
    machine = build(order(device=name))
    check_border(file.to_data(machine), machine, "m")
    assert file.from_data(file.to_data(machine), "m") == machine


@pytest.mark.parametrize("name", ["V100", "Tesla V100", "a100-80gb", "NVIDIA H100"])
def test_a_device_that_is_known_by_its_short_name_has_nccl(name: str) -> None:
    machine = build(order())
    named = replace(machine, library="", device=replace(machine.device, name=name))
    assert default_library(named) == "nccl"
    assert recognised(named.device.name) is not None


@pytest.mark.parametrize("name", ["host", "Intel Xeon Platinum 8259CL", "T400", "A1000", "A10G"])
def test_another_device_is_not_taken_for_a_known_one(name: str) -> None:
    assert recognised(replace(build(order()).device, name=name).name) is None


def test_shipped_machines_have_the_devices_of_the_table() -> None:
    for name in NETWORKED:
        device = file.load(name).device
        known = recognised(device.name)
        assert known is not None
        # A machine with measured products of its own has the rates that were reached with them.
        alike = device.matrices == known.device.matrices
        reached = ("bandwidth", "efficiency") if alike else ()
        for field in ("name", "flops", "memory", "precision", *reached):
            assert getattr(known.device, field) == getattr(device, field)


def written(folder: Path, **changes: Any) -> Path:
    """A machine of two nodes of 8 V100, with other values by path."""
    data = file.to_data(build(order(nodes=2)))
    for place, value in changes.items():
        found = data
        *groups, key = place.split("__")
        for group in groups:
            found = found[group]
        found[key] = value
        if value == "missing":
            del found[key]
    path = folder / "lab.json"
    path.write_text(json.dumps(data))
    return path


def test_a_file_must_say_whether_ranks_share_a_port(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CommschedError) as caught:
        file.read(written(tmp_path, nic="missing"))
    sentence = str(caught.value)
    assert "key 'nic' is missing: do the 8 ranks of a node share a network port?" in sentence
    assert '"nic": null' in sentence
    assert "\n" not in sentence
    own = file.read(written(tmp_path, nic=None))
    assert own.nic is None
    again = tmp_path / "again.json"
    file.write(again, own)
    assert file.read(again) == own
    assert main(["show", str(again), "--json"]) == 0  # what it prints is a file, too
    again.write_text(capsys.readouterr().out)
    assert file.read(again) == own
    file.read(written(tmp_path, nic="missing", lanes=1))  # one rank has the port alone
    file.read(written(tmp_path, nic="missing", nodes=1))  # there is no network


@pytest.mark.parametrize(
    ("place", "plain", "insisting", "why"),
    [
        (
            "nic__bandwidth_GBps",
            25,
            "25 GB/s",
            "is 200 Gbit/s (25 GB/s), more than the PCI",
        ),
        ("links__between__bandwidth_GBps", 100, "100 GB/s", 'write "100 Gbit/s" if that is meant'),
        (
            "nic__bandwidth_GBps",
            10,
            "10 GB/s",
            "is 80 Gbit/s (10 GB/s), which no port that is sold",
        ),
        ("links__inside__bandwidth_GBps", 2400, "2400 GB/s", "more than twice NVLink 5"),
        ("links__between__latency_us", 3e6, "3000000 us", "more than a second"),
        ("device__memory_GB", 16384, "16384 GB", "more than 4 TB"),
        ("device__bandwidth_GBps", 900000, "900000 GB/s", "more than twice the fastest memory"),
        ("device__tflops", 125000, "125000 Tflop/s", "more than 20 Pflop/s"),
    ],
)
def test_implausible_plain_numbers_are_asked_about(
    tmp_path: Path, place: str, plain: float, insisting: str, why: str
) -> None:
    with pytest.raises(CommschedError) as caught:
        file.read(written(tmp_path, **{place: plain}))
    assert why in str(caught.value)
    assert f'"{insisting}" if you mean it' in str(caught.value)
    meant = file.read(written(tmp_path, **{place: insisting}))
    again = tmp_path / "again.json"
    file.write(again, meant)  # and goes on insisting
    assert file.read(again) == meant


def test_models_and_show_speak_gbit_per_second(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("p3.16xlarge")]
    assert "25 Gbit/s" in rows[0]
    assert "3.125 Gbit/s" in rows[0]
    assert main(["show", "h100-8x400"]) == 0
    assert "400 Gbit/s (50 GB/s) per rank if all send" in capsys.readouterr().out
    assert main(["machine", "devices", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == list(accelerators())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--net", "25"], "--net is a rate, such as 25 Gbit/s; got '25'"),
        (["--ports", "0"], "--ports must be at least 1, got 0"),
        (["--latency", "1 us"], "--latency must be at least 2 us, got 1 us"),
        (["--gpus", "0"], "lanes must be at least 1, got 0"),
        (["--gpu", "abacus"], "no device named 'abacus'; known: a10, "),
        (["--inside", "nvlink"], "--inside is a rate, such as 25 Gbit/s; got 'nvlink'"),
    ],
)
def test_a_machine_that_cannot_be_built_is_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in refused([*NEW, str(tmp_path / "m.json"), *words], capsys)
    assert not (tmp_path / "m.json").exists()


def test_only_the_machine_file_may_be_written_over(tmp_path, capsys):
    log, on = tmp_path / "log.txt", tmp_path / "m.json"
    log.write_text("measured")
    assert (
        main(
            [
                "machine",
                "new",
                *["--nodes", "2", "--gpus", "2", "--gpu", "a100", "--net", "25Gbit/s", "-o"],
                str(on),
            ]
        )
        == 0
    )
    for word in (str(log), f"node={log}"):
        assert main(["machine", "fit", word, "--machine", str(on), "-o", str(log)]) == 2
        assert "is read by this command" in capsys.readouterr().err
    assert log.read_text() == "measured"
    parsed = argparse.Namespace(machine=str(on), output=on)
    check_output(parsed, in_place=("machine",))
    with pytest.raises(CommschedError, match="is read by this command"):
        check_output(parsed)
