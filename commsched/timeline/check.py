"""Conditions that every timeline must satisfy, whatever its source."""

import numpy as np

from commsched.timeline.model import Timeline

LONGEST = 1e8  # s, three years; float64 seconds resolve 15 ns there, and 1 ns until 50 days


def problem(t: Timeline) -> str | None:
    """Return the first problem of a timeline, in words, or None."""
    if t.ranks < 1:
        return f"ranks must be at least 1, got {t.ranks}"
    for what, table in (("stream", t.streams), ("name", t.names)):
        if len(set(table)) != len(table):
            twice = next(word for word in table if table.count(word) > 1)
            return f"the table of {what}s has {twice!r} twice"
        for word in table:
            if not (word and word.isprintable()):
                return f"the {what} {word!r} must be printable and not empty"
    if not t.plan_hash.isprintable():
        return f"the plan's hash {t.plan_hash!r} must be printable"
    return _bad_number(t) or _bad_index(t) or _twice(t)


def _bad_number(t: Timeline) -> str | None:
    columns = {"start": t.start, "end": t.end, "waited": t.waited, "nbytes": t.nbytes}
    columns["coded"] = t.coded
    for what, column in columns.items():
        if (bad := _first(~np.isfinite(column))) is not None:
            return f"{_span(t, bad)}: {what} is {column[bad]}; use a finite value"
    far = (np.abs(t.start) > LONGEST) | (np.abs(t.end) > LONGEST)
    if (bad := _first(far)) is not None:
        return f"{_span(t, bad)}: starts or ends more than {LONGEST:g} s from the run's start"
    if (bad := _first(t.end < t.start)) is not None:
        return f"{_span(t, bad)}: ends {t.start[bad] - t.end[bad]:.3g} s before it starts"
    # Files round times to 1 ns, and times are rounded to float64 twice: as s and as us.
    most = t.end - t.start + 2e-9 + 4 * np.spacing(np.maximum(np.abs(t.start), np.abs(t.end)))
    for what, column in (("waited", t.waited), ("coded", t.coded)):
        if (bad := _first((column < 0) | (column > most))) is not None:
            return f"{_span(t, bad)}: {what} {column[bad]:.9g} s, outside 0 and its own duration"
    if (bad := _first(t.nbytes < 0)) is not None:
        return f"{_span(t, bad)}: nbytes must not be negative, got {t.nbytes[bad]:g}"
    return None


def _bad_index(t: Timeline) -> str | None:
    if (bad := _first((t.rank < 0) | (t.rank >= t.ranks))) is not None:
        return f"span {bad}: rank {t.rank[bad]} is not one of the {t.ranks} ranks"
    if (bad := _first(t.step < 0)) is not None:
        return f"{_span(t, bad)}: step must not be negative, got {t.step[bad]}"
    for what, index, table in (("stream", t.stream, t.streams), ("name", t.name, t.names)):
        if (bad := _first((index < 0) | (index >= len(table)))) is not None:
            return f"span {bad}: {what} {index[bad]} is not in the table of {len(table)} {what}s"
    return None


def _twice(t: Timeline) -> str | None:
    order = np.lexsort((t.step, t.name, t.rank))
    same = np.ones(max(len(order) - 1, 0), bool)
    for column in (t.rank, t.name, t.step):
        same &= column[order[1:]] == column[order[:-1]]
    if (bad := _first(same)) is not None:
        return f"{_span(t, int(order[bad + 1]))}: is there twice; names must differ within a step"
    return None


def _first(wrong: np.ndarray) -> int | None:
    return int(np.argmax(wrong)) if wrong.any() else None


def _span(t: Timeline, i: int) -> str:
    known = 0 <= t.name[i] < len(t.names)
    name = repr(t.names[t.name[i]]) if known else f"name {t.name[i]}"
    return f"rank {t.rank[i]}, step {t.step[i]}, {name}"
