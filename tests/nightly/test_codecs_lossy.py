"""Every case of tests/test_codecs_lossy.py, which samples them by day."""

from tests.test_codecs_lossy import *  # noqa: F403, the laws
