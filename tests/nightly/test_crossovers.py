"""Every case of tests/test_crossovers.py, which samples them by day."""

from tests.test_crossovers import *  # noqa: F403, the laws
