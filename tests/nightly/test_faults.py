"""Faults at further places than the daily tests have."""

import signal

import pytest

from tests import test_faults, test_faults_pipelines, test_unlike_ranks, test_watchdog
from tests.test_faults import endless
from tests.test_watchdog import calibration

SHOWN = (endless,)  # fixtures


@pytest.mark.parametrize("place", ["result", "seconds", "drawing"])
def test_an_exception_at_another_place_ends_all_with_its_traceback(endless, place):
    test_faults.test_an_exception_on_one_rank_ends_all_with_its_traceback(endless, place)


@pytest.mark.parametrize("place", ["gradient", "drawing"])
def test_what_a_user_can_fix_at_another_place_is_one_sentence(endless, place):
    test_faults.test_what_a_user_can_fix_on_one_rank_is_one_sentence(endless, place)


def test_an_infinite_gradient_ends_all_ranks(endless):
    test_faults.test_a_gradient_that_is_not_finite_ends_all_ranks_with_its_tensor_and_rank(
        endless, "inf"
    )


@pytest.mark.parametrize("what", [signal.SIGINT, signal.SIGHUP])
def test_a_demo_that_is_ended_by_another_signal_takes_its_ranks_along(tmp_path, what):
    test_faults.test_a_demo_that_is_ended_takes_its_ranks_along(tmp_path, what)


def test_plans_for_other_numbers_of_ranks_are_refused(tmp_path):
    test_unlike_ranks.test_two_ranks_with_different_plans_are_refused(tmp_path, 3)


def test_a_rank_that_is_stopped_while_gradients_are_drawn_is_named(tmp_path):
    test_watchdog.test_a_rank_that_is_stopped_before_the_start_of_a_run_is_named(
        tmp_path, "drawing gradients"
    )


def test_a_rank_that_is_killed_during_calibrate_ends_it(tmp_path):
    test_watchdog.ended("codecs", signal.SIGKILL, *calibration(tmp_path / "m.json"))
    assert list(tmp_path.iterdir()) == []


def test_neighbours_of_a_stopped_stage_of_samo_name_it_and_the_bytes(tmp_path):
    made = test_faults_pipelines.written(tmp_path, "samo")
    test_faults_pipelines.test_neighbours_of_a_stopped_stage_name_it_and_the_bytes(made)


def test_a_killed_stage_of_1f1b_ends_the_job_and_leaves_the_spans(tmp_path):
    made = test_faults_pipelines.written(tmp_path, "1f1b")
    test_faults_pipelines.test_a_killed_stage_ends_the_job_and_leaves_the_spans(made)
