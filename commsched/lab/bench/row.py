"""One line of a benchmark's table."""

from typing import NamedTuple


class BenchRow(NamedTuple):
    """What was measured, how long it took, the rate or ratio, and what was asked for."""

    what: str
    seconds: float
    result: str
    bar: str
