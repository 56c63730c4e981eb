"""Sparsity laws against sums over every row, closed forms and drawn supports."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from commsched.errors import CommschedError
from commsched.net.sparsity import Law, Sparsity

densities = st.floats(1e-6, 1.0)


@st.composite
def sparsities(draw: st.DrawFn) -> Sparsity:
    laws: tuple[Law, ...] = get_args(Law)
    law = draw(st.sampled_from(laws))
    if law == "dense":
        return Sparsity()
    density = draw(densities)
    if law == "zipf":
        rows, exponent = draw(st.integers(2, 10_000)), draw(st.sampled_from([0.0, 0.5, 1.0, 1.7]))
        return Sparsity(law="zipf", density=density, rows=rows, exponent=exponent)
    if law == "curve":
        more = sorted(draw(st.lists(st.floats(density, 1.0), max_size=4)))
        ranks = sorted(draw(st.sets(st.integers(2, 999), min_size=len(more), max_size=len(more))))
        points = ((1.0, density), *zip(map(float, ranks), more, strict=True))
        return Sparsity(law="curve", density=density, curve=points)
    return Sparsity(law=law, density=density)


@given(law=sparsities().filter(lambda law: law.law != "curve"), density=densities)
def test_a_law_of_another_density_has_that_density(law: Sparsity, density: float) -> None:
    changed = law.at(density)
    assert float(changed.after(1)) == pytest.approx(density, rel=1e-12)
    assert (changed.rows, changed.exponent) == (law.rows, law.exponent)


@given(law=sparsities(), merged=st.lists(st.integers(1, 5000), min_size=1, max_size=8))
def test_summing_more_ranks_never_empties_a_tensor(law: Sparsity, merged: list[int]) -> None:
    ranks = np.array(sorted(merged))
    density = law.after(ranks)
    assert density.shape == ranks.shape
    assert np.all(np.diff(density) >= -1e-12)
    assert np.all(density <= 1 + 1e-12)
    assert np.all(density >= law.density * (1 - 1e-12))
    assert float(law.after(1)) == pytest.approx(law.density, rel=1e-12)


@given(
    law=sparsities(), numel=st.integers(20_000, 10**9), merged=st.integers(1, 999), data=st.data()
)
def test_ranges_add_up_to_the_whole_tensor(
    law: Sparsity, numel: int, merged: int, data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(st.integers(0, numel), max_size=6))
    edges = np.array([0, *sorted(cuts), numel])
    parts = law.nonzeros(numel, edges[:-1], edges[1:], merged)
    assert np.all(parts >= -1e-9 * numel)
    assert np.all(parts <= np.diff(edges) * (1 + 1e-9) + 1e-6)
    assert parts.sum() == pytest.approx(float(law.after(merged)) * numel, rel=1e-9)


@given(law=sparsities(), numel=st.integers(20_000, 10**6))
def test_each_range_may_sum_a_different_number_of_ranks(law: Sparsity, numel: int) -> None:
    start, stop, merged = np.array([0, 9, 9]), np.array([9, numel, numel]), np.array([1, 3, 7])
    together = law.nonzeros(numel, start, stop, merged)
    alone = [
        law.nonzeros(numel, start[i : i + 1], stop[i : i + 1], int(k))[0]
        for i, k in enumerate(merged)
    ]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


@pytest.mark.by_day(7)
@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 1.5])
@pytest.mark.parametrize("rows", [2, 300, 4096, 4097, 200_000])
def test_zipf_equals_the_sum_over_every_row(rows: int, exponent: float) -> None:
    law = Sparsity(law="zipf", density=0.05, rows=rows, exponent=exponent)
    weights = np.arange(1, rows + 1.0) ** -exponent
    miss = np.log1p(-weights / weights.sum())
    low, high = 1e-9, 1e15  # draws: the reference solves for them anew
    for _ in range(200):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if -np.expm1(middle * miss).mean() < 0.05 else (low, middle)
    want = [-np.expm1(k * high * miss).mean() for k in (1, 2, 16, 500)]
    np.testing.assert_allclose(law.after(np.array([1, 2, 16, 500])), want, rtol=1e-5)  # cells
    first = -np.expm1(3 * high * miss)[: rows // 2].sum() * 8
    got = law.nonzeros(rows * 8, np.array([0]), np.array([rows // 2 * 8]), 3)
    np.testing.assert_allclose(got, first, rtol=2e-5)


@given(density=st.floats(1e-4, 0.9), ranks=st.integers(2, 500), between=st.floats(0, 1))
def test_a_curve_of_two_uniform_points_is_uniform(
    density: float, ranks: int, between: float
) -> None:
    uniform = Sparsity(law="uniform", density=density)
    last = float(uniform.after(ranks))
    if last > 1 - 1e-9:  # no digits left of 1 - density
        return
    curve = Sparsity(law="curve", density=density, curve=((1.0, density), (float(ranks), last)))
    k = np.array(round(1 + between * (ranks - 1)))
    np.testing.assert_allclose(curve.after(k), uniform.after(k), rtol=1e-5)


@pytest.mark.parametrize(
    "law",
    [
        Sparsity(law="uniform", density=0.03),
        Sparsity(law="mask", density=0.5),
        Sparsity(law="curve", density=0.2, curve=((1.0, 0.2), (8.0, 0.4))),
        Sparsity(law="zipf", density=0.03, rows=5_000),
        Sparsity(law="zipf", density=0.03, rows=5_001),  # rows do not divide the elements
    ],
)
def test_drawn_supports_follow_the_law(law: Sparsity) -> None:
    numel, draws, rng = 40_000, 200, np.random.default_rng(7)
    edges = np.array([0, 100, 3000, 20_000, numel])
    counts = []
    for _ in range(draws):
        support = law.support(numel, rng)
        assert np.all(np.diff(support) > 0)
        assert support[0] >= 0
        assert support[-1] < numel
        counts.append(np.histogram(support, edges)[0])
    want = law.nonzeros(numel, edges[:-1], edges[1:], 1)
    error = np.std(counts, axis=0) / draws**0.5
    assert np.all(np.abs(np.mean(counts, axis=0) - want) < 5 * error + 1)  # 5 sigma, 1e-6 per range


def test_unions_of_drawn_supports_fill_up_as_predicted() -> None:
    law, numel, merged = Sparsity(law="zipf", density=0.02, rows=2_000), 16_000, 12
    rng, found = np.random.default_rng(3), []
    for _ in range(50):
        union = np.unique(np.concatenate([law.support(numel, rng) for _ in range(merged)]))
        found.append(len(union) / numel)
    error = np.std(found) / 50**0.5
    assert abs(np.mean(found) - float(law.after(merged))) < 5 * error  # 5 sigma


@pytest.mark.parametrize("union", [0.01, 0.012, 0.03, 0.039, 0.5])
@pytest.mark.parametrize("law", ["curve", "mask"])
def test_ranks_draw_from_a_pool_what_their_union_says(law: str, union: float) -> None:
    ranks, numel = 4, 400_000
    found = Sparsity(law="mask", density=0.01)
    if law == "curve":
        found = Sparsity(law="curve", density=0.01, curve=((1, 0.01), (4, union)))
    each = [
        found.drawn(numel, ranks, np.random.default_rng(1), np.random.default_rng([2, rank]))
        for rank in range(ranks)
    ]
    for one in each:
        assert (np.diff(one) > 0).all()
        assert len(one) / numel == pytest.approx(0.01, rel=0.08)
    alone = 1 - (1 - 0.01) ** ranks  # the most that ranks can reach
    want = min(float(found.after(ranks)), alone)
    got = len(np.unique(np.concatenate(each))) / numel
    assert got == pytest.approx(want, rel=0.05)


@example(Sparsity(law="zipf", density=0.5, exponent=0.0, rows=850), 20_000, 1)
@given(law=sparsities(), numel=st.integers(20_000, 10**6), merged=st.integers(1, 100))
def test_a_range_is_empty_as_often_as_its_parts_of_whole_rows(law, numel, merged) -> None:
    rows = law.rows or 100
    cuts = -(-np.array([0, rows // 3, rows // 2, rows]) * numel // rows)
    whole = law.log_empty(numel, cuts[:1], cuts[-1:], merged)
    parts = law.log_empty(numel, cuts[:-1], cuts[1:], merged)
    np.testing.assert_allclose(parts.sum(), whole[0], rtol=1e-9)
    assert (law.log_empty(numel, cuts, cuts, merged) == 0).all()


@pytest.mark.parametrize(
    "law",
    [Sparsity(law="uniform", density=0.01), Sparsity(law="zipf", density=0.05, rows=300)],
    ids=lambda law: law.law,
)
def test_ranges_of_drawn_supports_are_empty_as_often_as_predicted(law: Sparsity) -> None:
    numel, draws, merged, rng = 6000, 400, 3, np.random.default_rng(4)
    cuts = np.array([0, 1, 30, 200, 256, 1000, 1300, 4000, 4100])
    empty = np.zeros(len(cuts) - 1)
    for _ in range(draws):
        hit = np.zeros(numel)
        for _ in range(merged):
            hit[law.support(numel, rng)] = 1
        empty += np.add.reduceat(hit, cuts)[:-1] == 0
    expected = np.exp(law.log_empty(numel, cuts[:-1], cuts[1:], merged))
    # Five standard errors of a share, at least that of a share of 1 / draws.
    slack = 5 * np.sqrt(np.maximum(expected * (1 - expected), 1 / draws) / draws)
    assert (np.abs(empty / draws - expected) <= slack).all()


def test_a_dense_support_is_every_element() -> None:
    rng = np.random.default_rng(0)
    assert Sparsity().support(7, rng).tolist() == list(range(7))
    assert Sparsity(law="uniform", density=1e-9).support(7, rng).tolist() == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"law": "poisson"}, "no sparsity law named 'poisson'"),
        ({"law": "uniform", "density": 0.0}, "density must be in"),
        ({"law": "uniform", "density": float("nan")}, "density must be in"),
        ({"density": 0.5}, "law 'dense' has density 1, got 0.5"),
        ({"law": "zipf", "density": 0.5}, "needs rows in"),
        ({"law": "zipf", "density": 0.5, "rows": 9, "exponent": -1.0}, "needs an exponent in"),
        ({"law": "uniform", "density": 0.5, "rows": 9}, "belong to law 'zipf'"),
        ({"law": "curve", "density": 0.5}, "must start at"),
        ({"law": "curve", "density": 0.5, "curve": ((1.0, 0.4),)}, "must start at"),
        ({"law": "curve", "density": 0.5, "curve": ((1.0, 0.5), (2.0, 0.4))}, "not descend"),
        ({"law": "mask", "density": 0.5, "curve": ((1.0, 0.5),)}, "belongs to law 'curve'"),
    ],
)
def test_a_law_that_cannot_hold_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(CommschedError, match=message):
        Sparsity(**fields)  # type: ignore[arg-type]


def test_rare_rows_of_a_steep_law_are_not_lost_beside_frequent_ones():
    """At exponent 5 the first row of 100,000 takes nearly all draws, and there are very many."""
    law = Sparsity(law="zipf", rows=10**5, exponent=5.0, density=0.9)
    start = np.array([0, 10**5 - 1, 10**5 - 10, 5 * 10**4])
    stop = np.array([1, 10**5, 10**5, 6 * 10**4])
    chance = np.arange(1, 10**5 + 1) ** -5.0
    miss = np.log1p(-chance / chance.sum())
    draws = law.log_empty(10**5, *np.array([[1], [2]]), 1)[0] / miss[1]
    expected = [draws * miss[a:b].sum() for a, b in zip(start, stop, strict=True)]
    np.testing.assert_allclose(law.log_empty(10**5, start, stop, 1), expected, rtol=0.05)
