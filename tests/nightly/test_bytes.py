"""Every case of tests/test_bytes.py, which samples them by day."""

from tests.test_bytes import *  # noqa: F403, the laws
