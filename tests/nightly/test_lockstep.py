"""Every case of tests/test_lockstep.py, which samples them by day."""

from tests.test_lockstep import *  # noqa: F403, the laws
