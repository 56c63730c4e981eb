"""Times that must not fall with the size: noise is pooled."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from commsched.calibrate.main import rising

times = st.lists(st.floats(1e-6, 10), min_size=1, max_size=12).map(np.array)


@given(seconds=times)
def test_each_time_is_the_largest_of_the_smallest_means_around_it(seconds):
    """The closed form of isotonic regression: max over starts of min over ends of means."""
    logs, size = np.log(seconds), len(seconds)
    wanted = [
        max(min(logs[a:b].mean() for b in range(i + 1, size + 1)) for a in range(i + 1))
        for i in range(size)
    ]
    np.testing.assert_allclose(np.log(rising(seconds)), wanted, atol=1e-9)


@given(seconds=times)
def test_times_that_rise_stay_as_they_are(seconds):
    np.testing.assert_allclose(rising(np.sort(seconds)), np.sort(seconds), rtol=1e-12)
