"""`bench codecs`: rates of codecs beside a copy in memory, on one core."""

import json

import numpy as np
import pytest

from commsched.cli.main import main
from commsched.coding.registry import CODECS
from commsched.kernels.merge import Listed, merged
from commsched.lab.bench import codecs


def bench(capsys, *arguments: str) -> str:
    assert main(["bench", "codecs", "--numel", "5000", "--repeats", "2", *arguments]) == 0
    return capsys.readouterr().out


def test_every_listed_codec_is_measured(capsys):
    rows = json.loads(bench(capsys, "--codec", "all", "--json"))
    assert [row["codec"] for row in rows] == [*CODECS, "partition", "merge", "merge-unique"]
    for row in rows:
        assert row["numel"] == 5000
        assert 0 < row["nbytes"] <= 8 * 5000 + 100  # an index and a value each
        for key in ("encode", "copy"):
            times = row[key]
            assert 0 < times["least"] <= times["median"] <= times["most"]
            assert row[f"{key}_GBps"] == pytest.approx(20e3 / times["median"] / 1e9)


def test_without_names_those_with_a_rate_to_keep_are_measured(capsys):
    lines = bench(capsys).splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(codecs.ASKED)
    assert lines[1].split()[-1] == "asked"


def test_both_sums_of_lists_are_the_same():
    rng = np.random.default_rng(0)
    lists = []
    for _ in range(5):
        index = np.flatnonzero(rng.random(3000) < 0.1)
        lists.append(Listed(index, rng.integers(1, 9, len(index)).astype(np.float32)))
    for one, other in zip(merged(lists, 3000), codecs._unique(lists, 3000), strict=True):
        np.testing.assert_array_equal(one, other)
