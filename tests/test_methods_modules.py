"""Methods of several phases compute where the gradient lies, to the bits of NumPy."""

from itertools import count

import numpy as np
import pytest

from commsched.ir import Sparsity
from commsched.kernels.cuda import launch
from commsched.methods import METHODS, find_method
from commsched.methods.lockstep import fresh_states, run_method
from commsched.methods.node_union import Union, levels
from commsched.methods.powersgd import shape_of
from commsched.plan import BucketSpec
from tests import strict
from tests.cuda_on_cpu import cpu
from tests.supports import bits, group

# Those of other tests are registered, too.
SEVERAL = [name for name, m in METHODS.items() if type(m).__module__.startswith("commsched.")]
NAMES = [*SEVERAL, "zen:hierarchical"]
SHAPES = {"1x2": group(1, 2), "2x2": group(2, 2), "4x2": group(4, 2), "3x1": group(3, 1)}
NUMEL, ROWS = 1200, 75
LAWS = {
    "dense": Sparsity(),
    "half": Sparsity(law="uniform", density=0.4),
    "few": Sparsity(law="uniform", density=0.02),
    "rows": Sparsity(law="zipf", density=0.1, rows=ROWS),
}


def drawn(kind: str, ranks: int) -> list[np.ndarray]:
    """Every rank's gradient, whose sums round."""
    found, law = [], LAWS[kind]
    for rank in range(ranks):
        rng = np.random.default_rng(rank)
        values = np.zeros(NUMEL, np.float32)
        support = slice(None) if law.law == "dense" else law.support(NUMEL, rng)
        values[support] = rng.standard_normal(NUMEL).astype(np.float32)[support]
        found.append(values)
    return found


def results(name, members, put):
    """What every rank has after each of some steps: its sum, and what it keeps."""
    states = fresh_states([put(np.zeros(NUMEL, np.float32)) for _ in members.ranks], 5, "b0")
    for step, kind in enumerate(LAWS):
        for state, gradient in zip(states, drawn(kind, members.size), strict=True):
            state["gradient"][:], state["step"] = put(gradient), step
        spec = BucketSpec(((LAWS[kind], NUMEL, 0, NUMEL),))
        run_method(find_method(name), spec, members, states)
        for state in states:
            yield f"{kind}, rank {state['rank']}", state["result"]
            if "lost" in state:
                yield f"{kind}, rank {state['rank']}: lost", state["lost"]


def alike(found, wanted):
    for (where, here), (_, there) in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(bits(here), bits(there), err_msg=where)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_only_a_few_numbers_are_copied_to_the_host(name, shape, monkeypatch):
    members, copied = SHAPES[shape], []

    def noted(function):
        def copy(array, *given):
            copied.append(array.nbytes)
            return function(array, *given)

        return copy

    read = strict.ndarray.__getattr__
    monkeypatch.setattr(strict.ndarray, "get", noted(strict.ndarray.get))
    monkeypatch.setattr(
        strict.ndarray,
        "__getattr__",
        lambda array, word: (
            copied.append(array.nbytes) if word == "tolist" else None, read(array, word)
        )[1],
    )
    found = list(results(name, members, strict.asarray))
    assert all(isinstance(array, strict.ndarray) for _, array in found)
    alike([(where, array.held) for where, array in found], results(name, members, np.copy))
    most = 8 * (members.size + 3)  # where parts or regions begin, or a header
    if name.startswith("powersgd"):
        rows, _, rank = shape_of(NUMEL, find_method(name)._rank)
        most = max(most, 4 * rows * rank)
    assert max(copied) <= most


def test_node_union_was_tried_with_and_without_doubling():
    found = set()
    for members in SHAPES.values():
        for law in LAWS.values():
            spec = BucketSpec(((law, NUMEL, 0, NUMEL),))
            found.add(Union(spec=spec, ranks=levels(members)).overlaps)
    assert found == {False, True}
