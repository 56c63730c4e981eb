"""One line of a benchmark's table."""

from typing import NamedTuple


class BenchRow(NamedTuple):
    """A benchmark's result: the measured thing, its seconds, the rate or ratio, the requirement."""

    what: str
    seconds: float | None  # None: of several measurements, such as a mean of ratios
    result: str
    bar: str
