"""`commsched list` and `commsched explain`, and the nearest name of one that is misspelt."""

import json

import pytest

from commsched.cli.main import main
from commsched.cli.plug_ins import FILES, KINDS, listed
from commsched.errors import CommschedError
from commsched.machine import file as machine_file
from commsched.nearest_name import nearest
from commsched.net import file as net_file


@pytest.mark.parametrize("kind", KINDS)
def test_everything_that_is_registered_is_listed_with_a_line_of_its_own(kind, capsys):
    lines = listed(kind)
    assert list(lines) == list(KINDS[kind])
    assert all(5 < len(line) < 120 for line in lines.values())
    assert main(["list", kind, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {kind: lines}


def test_the_rounds_of_a_collective_are_drawn(tmp_path, capsys):
    path = tmp_path / "ring.svg"
    assert main(["explain", "ring", "--ranks", "3", "-o", str(path)]) == 0
    text = path.read_text()
    for word in ("ring: all-reduce of 3 blocks", "rank 2", "the receiver adds"):
        assert word in text
    assert text.count("<text") == 3 * 4 + 3 + 4 + 4  # moves, ranks, rounds; title, axis, legend
    assert f"drawn to {path}" in capsys.readouterr().out
    assert main(["explain", "native", "--ranks", "3", "-o", str(path)]) == 2
    assert main(["explain", "ring", "-o", str(path)]) == 2


def test_without_a_kind_all_are_listed(capsys):
    assert main(["list"]) == 0
    shown = capsys.readouterr().out.split()
    assert {*FILES, *KINDS, "ring", "resnet50", "summit", "nccl"} <= set(shown)


NAMES = [*(name for registry in KINDS.values() for name in registry), "fp16:feedback"]


@pytest.mark.parametrize("name", NAMES)
def test_everything_is_explained(name, capsys):
    assert main(["explain", name]) == 0
    assert len(capsys.readouterr().out) > 60


def test_a_selection_before_a_sparse_sum_is_explained(capsys):
    assert main(["explain", "zen+topk:0.05"]) == 0
    shown = capsys.readouterr().out
    assert "method zen+topk:0.05" in shown
    assert "bitmaps back" in shown
    assert "Aji & Heafield" in shown


def test_a_collective_is_drawn_and_says_its_source(capsys):
    assert main(["explain", "ring+fp16", "--ranks", "3"]) == 0
    shown = capsys.readouterr().out
    assert "Patarasuk" in shown
    assert "16-bit" in shown
    drawn = [line for line in shown.splitlines() if line[:2] in ("0>", "1>", "2>")]
    assert len(drawn) == 4  # 2 (p - 1) rounds
    assert all(line.count(">") == 3 for line in drawn)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["list", "codec"], "nearest: 'codecs'"),
        (["explain", "rign"], "nearest: 'ring'"),
        (["explain", "ring", "--ranks", "33"], "--ranks must be from 1 to 32"),
        (["explain", "ring+fp17"], "nearest: 'fp16'"),
        (["explain", "zenn+topk:0.05"], "nearest: 'zen'"),
        (["explain", "zen+qsgd:4"], "only a codec that selects values"),
        (["explain", "ok-topk+topk:0.05"], "no sparse sum"),
        (["explain", "quant:3"], "the bits of a value must be one of 1, 2, 4, 8; got '3'"),
        (["explain", "fp16", "--ranks", "3"], "fp16 has no rounds to draw"),
        (["explain", "native", "--ranks", "3"], "native has no rounds to draw"),
        (
            ["explain", "shard:reduce-scatter+dense", "--ranks", "3", "-o", "never.svg"],
            "shard:reduce-scatter has no rounds to draw",
        ),
    ],
)
def test_what_is_misspelt_is_one_sentence(words, said, capsys):
    assert main(words) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_case_and_hyphens_do_not_count_for_the_nearest_name():
    assert nearest("BERT_base", ["bert-base", "gpt2"]) == "; nearest: 'bert-base'"
    assert nearest("zzz", ["bert-base", "gpt2"]) == ""
    assert nearest("Conv1", ["conv1", "conv_1"]) == "; nearest: 'conv1'"
    for load, name, near in (
        (net_file.load, "ResNet-50", "resnet50"),
        (machine_file.load, "P3.16XLARGE", "p3.16xlarge"),
    ):
        with pytest.raises(CommschedError, match=f"nearest: '{near}'"):
            load(name)
