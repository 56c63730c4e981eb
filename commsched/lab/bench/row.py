"""One line of a benchmark's table."""

from typing import NamedTuple


class BenchRow(NamedTuple):
    """What was measured, its seconds, the rate or ratio, and the requirement."""

    what: str
    seconds: float | None  # None: of several measurements, such as a mean of ratios
    result: str
    bar: str
