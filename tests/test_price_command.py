"""`commsched price`: methods by their time, what they send, and what is left out."""

import json

import pytest

from commsched.cli.main import main


def priced(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["price", *arguments]) == 0
    return capsys.readouterr().out


def test_the_fastest_method_comes_first_and_bytes_are_plain_in_json(capsys):
    question = ["100000", "--machine", "localhost", "--density", "0.01", "--lanes", "3"]
    found = json.loads(priced(capsys, *question, "--json"))
    assert found["ranks"] == 3
    times = [method["seconds"] for method in found["methods"]]
    assert times == sorted(times)
    names = {method["method"]: method for method in found["methods"]}
    assert names["ring+dense"]["bytes_per_rank"] == pytest.approx(4 * 100000 * 4 / 3)
    lines = priced(capsys, *question, "--top", "999").splitlines()
    assert lines[0] == "100000 elements, density 0.01, 3 ranks on 1 node of localhost"
    assert [line.split()[0] for line in lines[3:]] == [m["method"] for m in found["methods"]]


def test_lossless_leaves_out_what_rounds_and_all_says_why_pairs_are_refused(capsys):
    question = ["1000", "--machine", "localhost"]
    everything = priced(capsys, *question, "--all")
    assert "ring+fp16" in everything
    assert "no method native+coo: collective 'native' sums float32 itself" in everything
    assert "no method all-to-all: " in everything
    assert "fp16" not in priced(capsys, *question, "--lossless")


def test_the_fastest_are_listed_and_bytes_are_as_good_as_elements(capsys):
    question = ["--machine", "localhost", "--lanes", "3"]
    all_of_them = priced(capsys, "25e6", *question, "--top", "999").splitlines()
    few = priced(capsys, "100MB", *question, "--top", "2").splitlines()
    assert [line.split()[:2] for line in few[:5]] == [line.split()[:2] for line in all_of_them[:5]]
    assert priced(capsys, "25M", *question, "--top", "2").splitlines() == few
    assert few[5] == f"{len(all_of_them) - 5} slower methods: --all lists them"
    assert priced(capsys, "25000000", *question).splitlines()[13].endswith("--all lists them")
    three = ["--method", "ring+dense,tree+dense,doubling+dense"]
    assert len(priced(capsys, "9", *question, *three).splitlines()) == 6


@pytest.mark.by_day(0)
def test_a_codec_pays_up_to_the_rate_that_is_told(capsys):
    """On both sides of the rate the prices say so themselves."""
    question = ["25e6", "--machine", "p3.16xlarge", "--nodes", "4", "--json"]
    two = ["--method", "ring+dense,ring+fp16"]
    told = json.loads(priced(capsys, *question, *two, "--break-even", "fp8:e4m3"))["break_even"]
    rate = told["port_bits_per_second"]
    methods = ["--method", f"{told['method']},{told['lossless']}"]
    for share, first in ((0.9, told["method"]), (1.1, told["lossless"])):
        on = ["--set", f"nic={share * rate:.6g} bit/s"]
        on += ["--set", f"between={share * rate:.6g} bit/s"]
        assert json.loads(priced(capsys, *question, *methods, *on))["methods"][0]["method"] == first


def test_only_the_methods_that_are_named_are_priced_listed_or_not(capsys):
    question = ["1000", "--machine", "localhost", "--method", "ring+dense,all-gather+topk:0.050"]
    names = [
        method["method"] for method in json.loads(priced(capsys, *question, "--json"))["methods"]
    ]
    assert sorted(names) == ["all-gather+topk:0.05", "ring+dense"]


def test_what_computation_hides_is_not_exposed(capsys):
    question = ["1000000", "--machine", "localhost", "--method", "ring+dense,ring+fp16,tree+dense"]
    bare = json.loads(priced(capsys, *question, "--json"))["methods"]
    assert all(method["exposed_seconds"] == method["seconds"] for method in bare)
    hidden = 1.0001 * bare[1]["seconds"]
    found = json.loads(priced(capsys, *question, "--compute", str(hidden * 1e3), "--json"))[
        "methods"
    ]
    assert [method["exposed_seconds"] for method in found] == pytest.approx(
        [0.0, 0.0, bare[2]["seconds"] - hidden], rel=1e-9
    )
    assert [method["method"] for method in found[:2]] == ["ring+dense", "ring+fp16"]
    lines = priced(capsys, *question, "--compute", str(hidden * 1e3)).splitlines()
    assert lines[1].split()[:3] == ["method", "time", "exposed"]
    assert [line.split()[2] for line in lines[3:5]] == ["0", "0"]


def test_a_strategy_is_priced_for_each_value_of_its_parameter(capsys):
    question = ["1000000", "--machine", "localhost", "--nodes", "2", "--strategy", "daso"]
    question += ["--param", "wait=1,3", "--compute", "0.5"]
    one, three = json.loads(priced(capsys, *question, "--json"))["settings"]
    assert [one["parameters"], three["parameters"]] == [{"wait": "1"}, {"wait": "3"}]
    for found, hidden in ((one, 0.5e-3), (three, 1.5e-3)):
        names = [each["exchange"] for each in found["exchanges"]]
        assert names == ["gradient", "blocking", "cycling", "spread"]
        for each in found["exchanges"]:
            beside = hidden if each["exchange"] == "cycling" else 0.0
            assert each["hidden_seconds"] == pytest.approx(beside, rel=1e-12)
            assert each["exposed_seconds"] == max(0.0, each["seconds"] - each["hidden_seconds"])
    lines = priced(capsys, *question).splitlines()
    assert lines[0].startswith("1000000 elements, strategy daso, density 1, ")
    assert [line.split()[0] for line in lines[3:]] == (
        ["wait=1", "blocking", "cycling", "spread", "wait=3", "blocking", "cycling", "spread"]
    )
