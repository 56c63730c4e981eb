"""Every case of tests/test_methods.py, which samples them by day."""

from tests.test_methods import *  # noqa: F403, the laws
