"""An interrupt within a wait for a lock is an interrupt all the same."""

import pytest

from commsched.run.engine.measurement import Measurement


def raise_in_a_lock(first: type[BaseException]) -> None:
    """Raise what a lock raises when something else was raised within its own code."""
    measurement = Measurement.__new__(Measurement)
    measurement._base = "m.json"  # type: ignore[assignment]
    with measurement.telling():
        try:
            raise first
        finally:
            raise RuntimeError("cannot release un-acquired lock")


def test_an_interrupt_within_a_lock_says_where_the_spans_lie():
    with pytest.raises(KeyboardInterrupt, match=r"interrupted; the spans so far lie in m.json"):
        raise_in_a_lock(KeyboardInterrupt)


def test_another_error_stays_what_it_is():
    with pytest.raises(RuntimeError, match="cannot release"):
        raise_in_a_lock(ValueError)
