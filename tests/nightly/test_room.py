"""Every case of tests/test_room.py, which samples them by day."""

from tests.test_room import *  # noqa: F403, the laws
