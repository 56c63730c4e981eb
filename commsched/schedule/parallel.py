"""Sub-groups that work at the same time: their rounds of equal index become one round."""

from collections.abc import Iterable, Iterator
from itertools import zip_longest

import numpy as np

from commsched.arrays import Ints
from commsched.schedule.rounds import Round


def parallel(parts: Iterable[Iterator[Round]]) -> Iterator[Round]:
    """Merge the k-th rounds of all `parts` (disjoint ranks, each of any length) into one.

    Rounds that meet must all add or all replace, and wait for equally many rounds. For circles of
    equal length `circles` does the same without a copy per round.
    """
    seen: tuple[tuple[Ints, Ints], ...] = ()
    src = dst = np.zeros(0, dtype=np.int64)
    for met in zip_longest(*parts):
        rounds = [round_ for round_ in met if round_ is not None]
        assert len({round_.add for round_ in rounds}) == 1, "adding and replacing rounds meet"
        assert len({round_.waits for round_ in rounds}) == 1, "rounds that wait differently meet"
        pattern = tuple((round_.src, round_.dst) for round_ in rounds)
        if not _same(pattern, seen):
            src, dst = (np.concatenate(column) for column in zip(*pattern, strict=True))
            seen = pattern
        yield Round(
            src,
            dst,
            np.concatenate([round_.first for round_ in rounds]),
            np.concatenate([round_.stop for round_ in rounds]),
            rounds[0].add,
            _merged(rounds),
            rounds[0].waits,
        )


def _same(a: tuple[tuple[Ints, Ints], ...], b: tuple[tuple[Ints, Ints], ...]) -> bool:
    """Tell whether two patterns are identical objects."""
    return len(a) == len(b) and all(
        x[0] is y[0] and x[1] is y[1] for x, y in zip(a, b, strict=True)
    )


def _merged(rounds: list[Round]) -> int | Ints:
    counts = [round_.merged for round_ in rounds]
    if all(isinstance(count, int) and count == counts[0] for count in counts):
        return counts[0]
    return np.concatenate([np.broadcast_to(r.merged, r.src.shape) for r in rounds])
