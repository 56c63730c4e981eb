"""Every case of tests/test_feedback.py, which samples them by day."""

from tests.test_feedback import *  # noqa: F403, the laws
