"""Every case of tests/test_planner_bound.py, which samples them by day."""

from tests.test_planner_bound import *  # noqa: F403, the laws
