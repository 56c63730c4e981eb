"""Every case of tests/test_price.py, which samples them by day."""

from tests.test_price import *  # noqa: F403, the laws
