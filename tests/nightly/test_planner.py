"""Every case of tests/test_planner.py, which samples them by day."""

from tests.test_planner import *  # noqa: F403, the laws
