"""Every case of tests/test_planner_best.py, which samples them by day."""

from tests.test_planner_best import *  # noqa: F403, the laws
