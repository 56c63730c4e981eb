"""Every case of tests/test_pipelines_learn.py, which samples them by day."""

from tests.test_pipelines_learn import *  # noqa: F403, the laws
