"""Gradients that are handed over as rows: the bits of the dense sum, and lists on the way."""

import numpy as np
import pytest

from commsched.exchange.registry import find_method
from commsched.kernels.merge import Listed
from commsched.planner.method_schedule import scheduled
from commsched.run.exchanger import Exchanger
from commsched.run.job import agree
from tests.support.ranks import WORLD
from tests.support.tiny_exchange import BACKWARD, SHAPES, equal, gradients, make_plan, refused

ROWS = ("c", "e")  # both are split over several buckets, beside dense tensors


def rows_of(step, rank):
    """Rows in any order, some twice; the last rank hits none in the second step."""
    random, found = np.random.default_rng([step, rank]), {}
    for name in ROWS:
        count = 0 if step and rank == WORLD.size - 1 else 4
        number = random.integers(0, SHAPES[name][0], count)
        values = random.standard_normal((count, *SHAPES[name][1:])).astype(np.float32)
        found[name] = number, values
    return found


def dense(step, rank):
    random = np.random.default_rng([9, step, rank])
    found = {n: random.standard_normal(s).astype(np.float32) for n, s in SHAPES.items()}
    for name, (number, values) in rows_of(step, rank).items():
        found[name] = np.zeros(SHAPES[name], np.float32)
        np.add.at(found[name], number, values)
    return found


def results(method, lists, lent=False):
    """What two steps give, rows written into zeros, and which launches exchanged lists."""
    got, listed = [], set()
    with Exchanger(make_plan(methods=[method]), WORLD) as exchanger:
        for step in range(2):
            given = dense(step, WORLD.rank) | (rows_of(step, WORLD.rank) if lists else {})
            for name in BACKWARD:
                exchanger.ready(name, given[name], lent=lent)
            for name in exchanger.names:
                value = exchanger.wait(name)
                if isinstance(value, tuple):
                    assert (np.diff(value[0]) > 0).all()
                    assert value[1].any(axis=tuple(range(1, value[1].ndim))).all()
                    number, value = value[0], np.zeros(SHAPES[name], np.float32) + 0
                    value[number] = exchanger.wait(name)[1]
                got.append(value.copy())
            sums = exchanger._caller.results
            listed |= {i for i, one in sums.items() if isinstance(one, Listed)}
    return got, listed


@pytest.mark.by_day(5)
@pytest.mark.groups(2, 3)
@pytest.mark.parametrize(
    "method",
    ["zen", "node-union", "ring+coo", "all-gather+elias", "ring+dense"],
)
def test_rows_give_the_bits_of_the_dense_gradient(method):
    got, listed = results(method, lists=True)
    want, none = results(method, lists=False)
    same = all(a.tobytes() == b.tobytes() for a, b in zip(got, want, strict=True))
    lent, _ = results(method, lists=True, lent=True)  # dense tensors share buckets with rows
    same &= all(a.tobytes() == b.tobytes() for a, b in zip(lent, want, strict=True))
    group = make_plan().machine.everyone
    lists = {0, 1, 2, 3} if find_method(method).takes_lists(group) else set()
    assert set(agree.gather_text(f"{same} {listed == lists} {none}", WORLD)) == {"True True set()"}


@pytest.mark.groups(2, 3)
def test_what_was_not_sent_travels_with_rows():
    """A plan that drops, then lists: all sums together are all gradients."""
    lossy, lists = (make_plan(methods=[m], mean=False) for m in ("all-gather+topk:0.2", "ring+coo"))
    later = scheduled(lossy, {1: "ring+coo"}, refresh=0)

    def rounded(step, rank):
        """Whole numbers, whose sums are exact."""
        return {n: (v[0], np.rint(4 * v[1])) for n, v in rows_of(step, rank).items()}

    for plans in ((lossy, lists), (later, later)):
        got = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
        want = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
        with Exchanger(plans[0], WORLD) as exchanger:
            for step in range(3):
                if step == 1 and plans[0] is not plans[1]:
                    exchanger.follow(lossy, "test")  # two changes without a step between them
                    exchanger.follow(plans[1], "test")
                given = gradients(step, WORLD.rank) | rounded(step, WORLD.rank)
                for name in BACKWARD:
                    exchanger.ready(name, given[name])
                for name in exchanger.names:
                    value = exchanger.wait(name)
                    if isinstance(value, tuple):
                        np.add.at(got[name], *value)
                    else:
                        got[name] += value
                for rank in range(WORLD.size):
                    for name, value in (gradients(step, rank) | rounded(step, rank)).items():
                        if isinstance(value, tuple):
                            np.add.at(want[name], *value)
                        else:
                            want[name] += value
        equal(got, want)


def test_rows_that_do_not_fit_are_refused():
    row, values = np.array([1]), np.zeros((1, 6), np.float32)
    with Exchanger(make_plan(), WORLD) as exchanger:

        def given(*pair):
            return lambda: exchanger.ready("e", pair)

        refused(given(row), "tensor 'e': rows of a gradient are (rows, values), NumPy arrays")
        refused(given([1], values), "tensor 'e': rows of a gradient are (rows, values), NumPy")
        refused(given(row + 0.5, values), "'e': the numbers of rows are whole numbers, one per row")
        refused(given(row, values[:, 1:]), "'e'", "shape must be [1, 6], got [1, 5]")
        refused(given(row, values.astype(float)), "'e': a gradient is float32, got float64")
        refused(given(row + 5, values), "tensor 'e' has 6 rows, got a gradient of row 6")
        refused(given(row - 2, values), "tensor 'e' has 6 rows, got a gradient of row -1")
