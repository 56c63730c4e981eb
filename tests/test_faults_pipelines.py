"""What happens when a rank of a pipeline breaks: the others say who waits for whom."""

import signal

import pytest

from commsched.plan import file as plan_file
from tests.support.pipeline_plans import net, staged
from tests.support.small_plans import machine
from tests.test_faults import assert_spans_are_kept, struck


def written(folder, strategy):
    """A plan of three stages on three ranks, with steps of some milliseconds."""
    layers = net(3, elements=500).scaled(1.0, 0.3)
    made = staged(strategy, 3, layers=layers, on=machine(1, 3), microbatches=4)
    plan_file.write(folder / "plan.json", made)
    return folder / "plan.json"


@pytest.fixture
def endless(request, tmp_path):
    return written(tmp_path, request.param)


@pytest.mark.by_day(0)
@pytest.mark.parametrize("endless", ["1f1b"], indirect=True)
def test_neighbours_of_a_stopped_stage_name_it_and_the_bytes(endless):
    ended = struck(endless, 1, signal.SIGSTOP, "--timeout", "1")
    lines = [line for line in ended.output.splitlines() if line.startswith("commsched: rank ")]
    assert any(line.endswith("no progress for 1 s (--timeout)") for line in lines), ended.output
    first = [line for line in lines if line.startswith("commsched: rank 0, receive from 1: step ")]
    # The last stage waits for an input, or for what samo's stages agree on.
    last = [x for x in lines if x.startswith("commsched: rank 2, ") and "from rank 1" in x]
    assert len(first) == len(last) == 1, ended.output
    # Messages of this net have as many bytes as activations.
    assert ": recv/s1-s0/m" in first[0]
    assert "waits for 4 kB from rank 1" in first[0]
    assert ": recv/s1-s2/m" in last[0] or ": overflow/decide " in last[0]
    own = [line for line in lines if line.startswith("commsched: rank 1")]
    assert own in ([], ["commsched: rank 1 does not answer"]), ended.output  # not on its own
    assert "Traceback" not in ended.output
    assert_spans_are_kept(endless)


@pytest.mark.by_day(0)
@pytest.mark.parametrize("endless", ["samo"], indirect=True)
def test_a_killed_stage_ends_the_job_and_leaves_the_spans(endless):
    struck(endless, 2, signal.SIGKILL)
    assert_spans_are_kept(endless)
