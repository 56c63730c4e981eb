"""20,000 broken files of the day: each gives one sentence, a result, and never a traceback."""

import pytest

from tests.nightly.fuzz.campaign import CASES, fuzz, today
from tests.nightly.fuzz.case import KEPT


@pytest.mark.timeout(3600)
def test_no_broken_file_breaks_a_command():
    seed = today()
    print(f"seed {seed}")
    assert list(fuzz(seed, CASES, 2, KEPT)) == [], f"seed {seed}; cases are kept in {KEPT}"
