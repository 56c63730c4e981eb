"""`bench sparse` under mpiexec: every method that sums exactly, its bytes and its ratios."""

import json
from math import lgamma, log

import numpy as np
import pytest

from commsched.exchange.registry import METHODS
from commsched.lab.bench import sparse_inputs as supports
from tests.support.rank_server import on_ranks

EXACT = sorted(name for name, method in METHODS.items() if method.lossless)


def ended(ranks, *options):
    return on_ranks(ranks, "bench", "sparse", *options)


@pytest.mark.by_day(0)
def test_every_exact_method_gives_a_row_and_the_sum_of_mpi():
    names = [*EXACT, "all-gather-direct+coo"]
    chosen = [word for name in names for word in ("--method", name)]
    sizes = ["--numel", "3000", "--density", "0.01", "--density", "0.3", "--repeats", "2"]
    done = ended(2, "--json", *sizes, *chosen)
    assert done.status == 0, done.output
    rows = json.loads(done.output[done.output.index("[\n") :])
    assert [(row["density"], row["method"]) for row in rows] == [
        (density, name) for density in (0.01, 0.3) for name in names
    ]
    for row in rows:
        assert min(row["seconds"], row["dense_seconds"], row["mpi_seconds"]) > 0
        assert row["wire"] > 0
        assert row["floor_seconds"] > 0
    lists = [row for row in rows if row["method"] == "all-gather-direct+coo"]
    for row in lists:  # a list of 8 B per non-zero and a header reaches a rank
        count = row["density"] * 3000
        slack = 5 * 8 * count**0.5  # five standard errors
        assert row["wire"] == pytest.approx(16 + 8 * count, abs=slack)


@pytest.mark.parametrize("support", ["zipf", "text"])
def test_rows_of_tables_are_summed_too(support):
    done = ended(
        2, "--json", "--support", support, "--numel", "40000", "--density", "0.02",
        "--repeats", "1", "--method", "node-union", "--method", "zen",
    )  # fmt: skip
    assert done.status == 0, done.output
    rows = json.loads(done.output[done.output.index("[\n") :])
    assert [(row["support"], row["method"]) for row in rows] == [
        (support, "node-union"),
        (support, "zen"),
    ]
    # What the other rank says: which rows of the table, log2 of their choices by Stirling's
    # formula, and all of their values.
    outside = [supports.draw(support, 40_000, 0.02, rank) for rank in (0, 1)]
    table = {"zipf": 2**15, "text": 3594}[support]
    said = []
    for one in outside:
        assert one.of == pytest.approx(table, rel=0.2)  # manuals of Python's versions differ
        hit, all_rows = len(one.rows), one.of
        choices = lgamma(all_rows + 1) - lgamma(hit + 1) - lgamma(all_rows - hit + 1)
        said.append(4 * len(one.index) + choices / log(2) / 8)
    for row in rows:
        assert row["least"] <= row["seconds"] <= row["most"]
        assert row["floor_seconds"] == pytest.approx(row["floor"] / row["rate"])
        assert row["floor"] == pytest.approx(max(said), abs=2)  # B: log2 of sqrt(k) is left out


@pytest.mark.parametrize("kind", supports.KINDS)
@pytest.mark.parametrize("rank", [0, 5])
def test_supports_are_as_dense_as_asked_and_alike_every_time(kind, rank):
    numel, density = 200_000, 0.02
    spec, index, _, _, _ = supports.draw(kind, numel, density, rank)
    assert spec.numel == numel
    assert (np.diff(index) > 0).all()
    assert 0 <= index[0] <= index[-1] < numel
    slack = 5 * (density / min(numel, 3594)) ** 0.5  # five standard errors of whole rows
    assert len(index) / numel == pytest.approx(density, abs=slack)
    np.testing.assert_array_equal(supports.draw(kind, numel, density, rank).index, index)


@pytest.mark.parametrize("kind", supports.KINDS)
def test_a_row_that_is_hit_is_whole(kind):
    numel = 200_001
    _, index, rows, of, _ = supports.draw(kind, numel, 0.02, 3)
    assert (np.diff(rows) > 0).all()
    element = np.arange(numel)
    row_of = element // (numel // of) if kind == "text" else element * of // numel
    np.testing.assert_array_equal(index, element[np.isin(row_of, rows)])


@pytest.mark.parametrize("kind", supports.KINDS)
def test_drawn_values_sum_alike_in_every_order(kind):
    drawn = np.array([supports.draw(kind, 50_000, 0.02, rank).values[:900] for rank in range(16)])
    assert (drawn != 0).all()
    exact = drawn.astype(np.float64).sum(axis=0)
    np.testing.assert_array_equal(drawn.sum(axis=0), exact)
    np.testing.assert_array_equal(np.add.reduce(drawn[::-1], axis=0), exact)


def test_the_largest_elements_of_ranks_gradients_overlap_more_than_chance():
    numel, density = 100_000, 0.02
    first, other = (supports.draw("top", numel, density, rank).index for rank in (0, 1))
    both = len(np.intersect1d(first, other))
    assert 5 * density < both / len(first) < 1
