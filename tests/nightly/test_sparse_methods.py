"""Every case of tests/test_sparse_methods.py, which samples them by day."""

from tests.test_sparse_methods import *  # noqa: F403, the laws
