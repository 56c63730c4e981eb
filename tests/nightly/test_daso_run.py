"""A killed rank of a run with daso."""

import signal

from commsched.timeline import file as timeline_file
from tests.test_daso_run import plan
from tests.test_faults import assert_spans_are_kept, struck

SHOWN = (plan,)  # a fixture


def test_a_killed_rank_ends_the_job_and_leaves_the_spans(plan):
    struck(plan, 2, signal.SIGKILL, ranks=4, spans=300)
    assert_spans_are_kept(plan, ranks=4)
    left = timeline_file.read(plan.with_name("m.json"))
    assert {"g0/exchange", "c0/exchange", "g0/merge"} <= set(left.names)
