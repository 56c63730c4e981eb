"""The exam of tests/test_exam.py for every pair in every shape."""

from tests.test_exam import *  # noqa: F403, the laws
