"""What is expected in a bucket does not depend on where its tensors are cut."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from commsched.net.bucket import BucketSpec
from commsched.net.sparsity import Sparsity

UNIFORM = Sparsity(law="uniform", density=0.25)


@given(
    pieces=st.lists(
        st.tuples(st.sampled_from([Sparsity(), UNIFORM]), st.integers(1, 30)), min_size=1
    ),
    start=st.integers(0, 100),
    length=st.integers(0, 100),
    merged=st.integers(1, 4),
)
def test_a_run_is_empty_if_all_its_elements_are(pieces, start, length, merged):
    spec = BucketSpec(tuple((law, numel, 0, numel) for law, numel in pieces))
    start = min(start, spec.numel)
    stop = min(start + length, spec.numel)
    found = spec.log_empty(np.array([start]), np.array([stop]), merged)
    laws = [law for law, numel in pieces for _ in range(numel)][start:stop]
    with np.errstate(divide="ignore"):
        want = sum(merged * np.log1p(-law.density) for law in laws)
    np.testing.assert_allclose(found, [want], rtol=1e-12)
