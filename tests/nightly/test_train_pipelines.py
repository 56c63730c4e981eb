"""Every case of tests/test_train_pipelines.py, which samples them by day."""

from tests.test_train_pipelines import *  # noqa: F403, the laws
