"""The map of fastest methods: one colour for a method, smooth borders, letters on islands."""

import numpy as np
import pytest

from commsched.planner.crossover import Winners
from commsched.plot import crossover


def priced(methods, seconds):
    seconds = np.stack(seconds, axis=-1)
    names = tuple(tuple(methods[i] for i in row) for row in seconds.argmin(axis=-1))
    rates = tuple(np.geomspace(1e8, 1e11, seconds.shape[1]).tolist())
    densities = tuple(np.geomspace(1e-4, 1, seconds.shape[0]).tolist())
    return Winners(densities, rates, names, tuple(methods), seconds)


def test_a_method_has_the_colour_of_its_family_in_every_figure():
    known = [crossover.colour(f"{family}+dense") for family in crossover.HUES]
    assert len(set(known)) == len(known)
    assert crossover.colour("ring+dense") != crossover.colour("ring+fp16")
    assert crossover.colour("ring+topk:0.01") == crossover.colour("ring+topk:0.5")


def test_borders_between_priced_cells_lie_where_times_are_equal():
    rates = np.geomspace(1e8, 1e11, 5)
    flat = np.broadcast_to(np.ones(5), (3, 5))
    falling = np.broadcast_to(3e9 / rates, (3, 5))
    best = crossover._refined(priced(["ring+dense", "direct+coo"], [flat, falling])).argmin(-1)
    border = int(best[0].argmax()) / (best.shape[1] - 1)
    assert 1e8 * 1000**border == pytest.approx(3e9, rel=0.06)


def test_each_island_has_its_letter_and_the_machine_is_marked(tmp_path):
    one, two = np.full((5, 5), 1.0), np.full((5, 5), 2.0)
    two[0, 0] = two[4, 4] = 0.1  # two islands of the second method
    found = priced(["ring+dense", "direct+coo"], [one, two])
    crossover.draw(found, tmp_path / "map.svg", "mine", 25e9 / 8)
    text = (tmp_path / "map.svg").read_text()
    assert text.count(">b<") == 2
    assert text.count(">a<") == 1
    assert "this machine: 25 Gbit/s" in text
    assert crossover.colour("direct+coo") in text
    mask = np.array([[1, 1, 0, 1], [0, 1, 0, 1], [1, 1, 0, 1]], bool)
    assert [int(part.sum()) for part in crossover._islands(mask)] == [5, 3]
