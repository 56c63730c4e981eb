"""Which of many cases a test takes by day; tests/nightly takes them all."""

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import HealthCheck, settings

from commsched.coding.registry import CODECS

Case = TypeVar("Case")
BY_DAY, BY_NIGHT = 15, 100  # examples that hypothesis draws
whole = False  # set before the laws are imported


def take(*, nightly: bool, repeatable: bool) -> None:
    """Take some cases, or all; `repeatable`: hypothesis draws the same examples every time."""
    global whole
    whole = nightly
    settings.register_profile(
        "commsched",
        deadline=None,
        max_examples=BY_NIGHT if nightly else BY_DAY,
        derandomize=repeatable,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],  # a busy machine is not a mistake
    )
    settings.load_profile("commsched")


def examples(count: int) -> int:
    """Return how many examples hypothesis draws where `count` are needed by night."""
    return count if whole else max(3, count // 3)


def some(cases: Sequence[Case], count: int) -> list[Case]:
    """Return `count` cases at even distances from the first to the last, or by night all."""
    if whole or len(cases) <= count:
        return list(cases)
    if not count:
        return []
    return [cases[i * (len(cases) - 1) // max(1, count - 1)] for i in range(count)]


def kind(codec: str) -> str:
    """How the packets of a codec behave when they are summed."""
    found = CODECS[codec]
    return "lossy" if not found.lossless else "fixed" if found.fixed else "growing"


def pairwise(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return every collective with a codec of each kind, and every codec; by night all pairs.

    pairs: collective and codec, legal ones only.
    """
    if whole:
        return list(pairs)
    taken: Counter[str] = Counter()
    found = []
    for group in sorted({(collective, kind(codec)) for collective, codec in pairs}):
        members = [pair for pair in pairs if (pair[0], kind(pair[1])) == group]
        found.append(min(members, key=lambda pair: taken[pair[1]]))
        taken[found[-1][1]] += 1
    for pair in pairs:
        if not taken[pair[1]]:
            found.append(pair)
            taken[pair[1]] += 1
    return sorted(found)
