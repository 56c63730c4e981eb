"""Methods of several phases compute where the gradient lies, to the bits of NumPy."""

import numpy as np
import pytest

from commsched.exchange import error
from commsched.exchange.lockstep import fresh_states, run_method
from commsched.exchange.registry import METHODS, find_method
from commsched.methods.node_union.method import Union, levels
from commsched.methods.powersgd import parts_of
from commsched.net.bucket import BucketSpec
from commsched.net.sparsity import Sparsity
from tests.support import strict_arrays
from tests.support.gradients import bits, group

# Those of other tests are registered, too.
SEVERAL = [name for name, m in METHODS.items() if type(m).__module__.startswith("commsched.")]
NAMES = [*SEVERAL, "zen:hierarchical"]
SHAPES = {"2x2": group(2, 2), "4x2": group(4, 2), "3x1": group(3, 1)}
NUMEL, ROWS = 1200, 75
LAWS = {
    "dense": Sparsity(),
    "half": Sparsity(law="uniform", density=0.4),
    "few": Sparsity(law="uniform", density=0.02),
    "rows": Sparsity(law="zipf", density=0.1, rows=ROWS),
}
MATRIX = 960  # elements of a matrix of 60 x 16 that stands before a vector
SPECS = {
    kind: BucketSpec(((law, NUMEL, 0, MATRIX), (law, NUMEL, MATRIX, NUMEL)), widths=(16, 1))
    for kind, law in LAWS.items()
}


def drawn(kind: str, rank: int) -> np.ndarray:
    """A gradient whose sums round."""
    rng, law = np.random.default_rng(rank), LAWS[kind]
    values = rng.standard_normal(NUMEL).astype(np.float32)
    found = np.zeros(NUMEL, np.float32)
    support = slice(None) if law.law == "dense" else law.support(NUMEL, rng)
    found[support] = values[support]
    return found


def results(name, members, put):
    """What every rank has after each of some steps: its sum, and what it keeps."""
    states = fresh_states([put(np.zeros(NUMEL, np.float32)) for _ in members.ranks], 5, "b0")
    for step, (kind, spec) in enumerate(SPECS.items()):
        for rank, state in enumerate(states):
            state["gradient"][:], state["step"] = put(drawn(kind, rank)), step
        run_method(find_method(name), spec, members, states)
        for rank, state in enumerate(states):
            for key in ("result", "lost"):
                if key in state:
                    yield f"{kind}, rank {rank}: {key}", state[key].copy()


def alike(found, wanted):
    for (where, here), (_, there) in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(bits(here), bits(there), err_msg=where)


@pytest.mark.by_day(14)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_only_a_few_numbers_are_copied_to_the_host(name, shape, monkeypatch):
    members, copied = SHAPES[shape], [0]
    for word in ("get", "tolist"):
        read = getattr(strict_arrays.ndarray, word)
        noted = lambda array, read=read: copied.append(array.nbytes) or read(array)  # noqa: E731
        monkeypatch.setattr(strict_arrays.ndarray, word, noted)
    found = list(results(name, members, strict_arrays.asarray))
    assert all(isinstance(array, strict_arrays.ndarray) for _, array in found)
    alike([(where, array.held) for where, array in found], results(name, members, np.copy))
    most = 8 * (members.size + 3)  # where parts or regions begin, or a header
    if name.startswith("powersgd"):  # the sum whose columns are made orthonormal
        most = max(most, 4 * sum(part.left for part in parts_of(SPECS["dense"], int(name[-1]))))
    assert max(copied) <= most


@pytest.mark.parametrize("name", ["ok-topk:0.1", "powersgd:2", "all-gather+topk:0.1"])
def test_what_a_lossy_method_leaves_behind_is_measured_there(name):
    runs, found = [slice(0, 300), slice(300, NUMEL)], []
    for put in (np.copy, strict_arrays.asarray):
        method, members = find_method(name), SHAPES["2x2"]
        states = fresh_states([put(drawn("dense", rank)) for rank in members.ranks], 5, "b0")
        first = method.phases(SPECS["dense"], members)[0]
        wanted, _ = error.before(method, first, states[1], runs)
        run_method(method, SPECS["dense"], members, states)
        found.append([wanted.tolist(), error.after(states[1], runs).tolist()])
    assert found[0] == found[1]
    assert min(found[0][1]) > 0


def test_node_union_is_tried_with_doubling_and_without():
    unions = [Union(spec=s, ranks=levels(m)) for s in SPECS.values() for m in SHAPES.values()]
    assert {union.overlaps for union in unions} == {False, True}


KERNELS = {
    "zen": {"count_parts", "write_groups", "flag_above"},
    "zen:hierarchical": {"place", "count_parts", "flag_above"},
    "balanced": {"count_parts", "write_groups", "flag_above"},
    "centralised": {"flag_above", "mark", "add_list"},
    "node-union": {"flag_above", "mark", "add_list", "count_set"},
    "ok-topk:0.01": {"flag_above", "count_digits", "add_list"},
    "powersgd:2": {"spread", "subtract"},
}
