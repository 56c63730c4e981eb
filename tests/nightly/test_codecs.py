"""Every case of tests/test_codecs.py, which samples them by day."""

from tests.test_codecs import *  # noqa: F403, the laws
