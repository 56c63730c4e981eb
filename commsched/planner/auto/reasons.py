"""Sentences on why a strategy was chosen, and why the others were not."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from commsched.planner.auto.candidates import LeftOut
from commsched.planner.auto.choose import ChosenStrategy
from commsched.planner.auto.rows import SHARE, Row
from commsched.units import count, nbytes, seconds

SAME = 5e-4  # share of the time below which two rows are called equal
PARTS = {"exposed": "exposed communication", "bubble": "bubble", "busy": "computing and coding"}


def reasons(choice: ChosenStrategy) -> list[str]:
    """Return sentences: why the first won, why the runner-up lost, and who was faster."""
    return [*_won(choice), *_lost(choice), *_faster(choice), *_risk(choice)]


def left_out(choice: ChosenStrategy) -> list[str]:
    """Say what has no row and why: a line for each reason, with the strategies that have it."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    needs: defaultdict[str, list[float]] = defaultdict(list)
    floors: defaultdict[str, list[LeftOut]] = defaultdict(list)
    for one in choice.left_out:
        if one.floor:
            floors[one.why].append(one)
        elif one.need:
            needs[one.candidate.strategy].append(one.need)
        else:
            found[one.why][one.candidate.strategy] += 1
    for name, every in needs.items():
        found[f"needs {nbytes(min(every))} per rank or more"][name] = len(every)
    for why, some in floors.items():
        least = seconds(min(one.floor for one in some))
        words = f"computing, bubble and messages alone take {least} or more, {why}"
        found[words] = Counter(one.candidate.strategy for one in some)
    return [
        f"not tried: {', '.join(f'{name} ({number})' for name, number in counts.items())}: {why}"
        for why, counts in found.items()
    ]


def _won(choice: ChosenStrategy) -> Iterator[str]:
    legal = sum(not one.refused for one in choice.rows)
    first = choice.winner
    yield (
        f"{first.told.words} takes the least time of {count(legal, 'plan')} that may be"
        f" chosen: {seconds(first.time)}"
    )


def _lost(choice: ChosenStrategy) -> Iterator[str]:
    """Say by which parts of its time the runner-up lost."""
    first, second = choice.winner, choice.runner_up
    if second is None:
        yield "no other plan may be chosen"
        return
    more = second.time - first.time
    if more <= SAME * first.time:
        yield f"{second.told.words} takes as long, {seconds(second.time)}"
        return
    yield (
        f"{second.told.words} is the runner-up with {seconds(second.time)},"
        f" {more / first.time:.1%} more: {_difference(second, first)}"
    )


def _difference(one: Row, other: Row) -> str:
    """List by how much the parts of a time are longer or shorter than another's."""
    found = {
        words: getattr(one.times, part) - getattr(other.times, part)
        for part, words in PARTS.items()
    }
    least = SAME * other.time
    shown = sorted(found.items(), key=lambda item: -item[1])
    words = [
        f"{seconds(abs(value))} {'more' if value > 0 else 'less'} {name}"
        for name, value in shown
        if abs(value) > least
    ]
    return ", ".join(words) or "no single part"


def _faster(choice: ChosenStrategy) -> Iterator[str]:
    """Name the rows that take less time than the winner but must not be chosen."""
    for one in choice.best:
        if one.refused and one.time < choice.winner.time:
            yield (
                f"{one.told.words} would take {seconds(one.time)}, but {one.refused}"
                f" ({one.learning})"
            )


def _risk(choice: ChosenStrategy) -> Iterator[str]:
    """Tell whether the winner stays first if links are slower than the machine file says."""
    first, second = choice.winner, choice.runner_up
    if second is None or first.risk is None or second.risk is None:
        return
    slow, other = first.time * (1 + first.risk), second.time * (1 + second.risk)
    verdict = "stays first" if slow <= other else "falls behind the runner-up"
    yield (
        f"with links at {SHARE:.0%} of their rates {first.told.words} {verdict}:"
        f" {seconds(slow)} against {seconds(other)}"
    )
