"""Every case of tests/test_exchanger.py, which samples them by day."""

from tests.test_exchanger import *  # noqa: F403, the laws
