"""Step times of the convergence table, simulated."""

import pytest

from commsched.lab.convergence.cases import RATIOS
from tests.test_step_times import NAMES, simulated


def test_a_rank_computes_as_long_in_every_case_of_a_ratio(tmp_path):
    """Pipelines, too: their stages share the net, and microbatches the batch."""
    table, compute = simulated(tmp_path, "deep", NAMES)
    for name in NAMES:
        ratio = "samo" if name.startswith("samo") else "fft"
        times = table.times(name, ratio)
        assert times.measured == pytest.approx(times.predicted, rel=1e-12)
        assert times.value == RATIOS[ratio].value
        heads = 1.1 if name.startswith("local") else 1.001  # auxiliary ones, packing of gradients
        assert times.compute * 0.999 < compute[name] < times.compute * heads
    assert len({table.times(name, "fft").compute for name in NAMES[:4]}) == 1
    pruned, whole = table.times("samo", "samo"), table.times("samo-dense", "samo")
    assert pruned.state_bytes == pytest.approx(0.22 * whole.state_bytes, rel=1e-2)  # 4.4 of 20 phi
    assert pruned.moved()[1] < 0.3 * whole.moved()[1]
    assert table.times("local-greedy", "fft").measured < table.times("1f1b", "fft").measured
