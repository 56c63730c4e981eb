"""Every case of tests/test_planner_guard.py, which samples them by day."""

from tests.test_planner_guard import *  # noqa: F403, the laws
