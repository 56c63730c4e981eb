"""Every case of tests/test_example.py, which samples them by day."""

from tests.test_example import *  # noqa: F403, the laws
