"""The columns of a study's table as pictures show them, and fronts and break-evens of its rows."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import exp, log
from typing import Any, NamedTuple

from commsched.quantities import DENSITY, PORT, POSITIVE

Row = Mapping[str, Any]
GAIN = 0.01  # share of a step that compressing must save in order to pay


class Column(NamedTuple):
    """A column of the table, and its form in pictures."""

    name: str
    label: str
    scale: float = 1.0
    number: bool = True
    words: str = "{}"  # around a value, in legends
    read: Callable[[str], float] | None = None  # reads a text with a unit


MEASURES = {
    "step": Column("step_seconds", "step in ms", 1e-3),
    "exposed": Column("exposed_seconds", "exposed communication in ms", 1e-3),
    "bytes": Column("sent_bytes_per_rank", "sent per rank in MB", 1e6),
    "memory": Column("memory_bytes_per_rank", "memory per rank in GB", 1e9),
    "bound": Column("bound_seconds", "bound in ms", 1e-3),
    "money": Column("money_per_hour", "money per hour"),
}
PER_BATCH = {"step": "batch", "exposed": "batch-exposed", "bytes": "batch-bytes"}
MEASURES |= {
    "batch": Column("batch_seconds", "time per batch in ms", 1e-3),
    "batch-exposed": Column("batch_exposed_seconds", "exposed per batch in ms", 1e-3),
    "batch-bytes": Column("batch_sent_bytes", "sent per rank and batch in MB", 1e6),
}
AXES = {
    "bandwidth": Column(
        "port_bits_per_second",
        "Gbit/s of a node's port",
        1e9,
        words="{} Gbit/s",
        read=lambda word: 8 * PORT(word),
    ),
    "ranks": Column("ranks", "ranks", words="{} ranks"),
    "nodes": Column("nodes", "nodes", words="{} nodes"),
    "scale": Column("scale", "scale of the net", words="{} x the net", read=POSITIVE),
    "density": Column("density", "density of a rank's gradients", words="density {}", read=DENSITY),
    **{
        name: Column(name, name, number=False)
        for name in ("net", "machine", "planner", "allow", "method", "strategy", "set", "compute")
    },
}
KNOWN = {**MEASURES, **AXES}


def there(row: Row, name: str) -> bool:
    column = KNOWN[name]
    return not column.number or isinstance(row.get(column.name), float | int)


def value_of(row: Row, name: str) -> Any:
    column = KNOWN[name]
    return row[column.name] / column.scale if column.number else row[column.name]


def order_of(row: Row, name: str) -> tuple[float, str]:
    column = KNOWN[name]
    return (
        (value_of(row, name), "") if column.number and there(row, name) else (0, text_of(row, name))
    )


def digits(value: float) -> str:
    """Format a number of a table: equal numbers equally, different counts differently."""
    return f"{value:.12g}"


def text_of(row: Row, name: str) -> str:
    """Return a value in the form of --where; a dash for a value that the row leaves unchanged."""
    column = KNOWN[name]
    if not column.number:
        return str(row[column.name]) or "-"
    return digits(value_of(row, name)) if there(row, name) else "-"


def shown_of(row: Row, name: str) -> str:
    """Return a value in the form of a legend, with words that describe it."""
    text = text_of(row, name)
    if name == "allow" and text == "-":
        return "lossless"
    return text if text == "-" else KNOWN[name].words.format(text)


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the Pareto front: no other point is less in one number and not more in the other."""
    found: list[tuple[float, float]] = []
    for point in sorted(points):
        if not found or point[1] < found[-1][1]:
            found.append(point)
    return found


def ticks_apart(values: Sequence[float], wide: bool, room: int) -> list[float]:
    """Return values whose ticks do not overlap, including the first and the last value."""
    at = [log(value) if wide else value for value in values]
    least = (at[-1] - at[0]) / room
    kept = [0]
    for place in range(1, len(values)):
        if at[place] - at[kept[-1]] >= least:
            kept.append(place)
    if kept[-1] != len(values) - 1 and len(kept) > 1:
        kept[-1] = len(values) - 1
    return [values[place] for place in kept]


class BreakEvenPoint(NamedTuple):
    """A point at which compressing begins or stops to pay."""

    row: Row
    x: float
    below: bool  # True: compressing pays below x; False: above x


def break_evens(rows: Sequence[Row], x: str, lines: Sequence[str] = ()) -> list[BreakEvenPoint]:
    """Find where a row's codecs begin or stop to save GAIN of the step without codecs.

    lines: columns by which the lines of a panel differ. The saved share is interpolated linearly
    over the logarithm of x.
    """
    others = [name for name in lines if name != "allow"]
    same: dict[tuple[str, ...], dict[str, dict[float, Row]]] = {}
    for one in rows:
        key = tuple(text_of(one, name) for name in others)
        same.setdefault(key, {}).setdefault(one["allow"], {})[value_of(one, x)] = one
    found = []
    for by_codec in same.values():
        plain = by_codec.pop("", {})
        for codec in by_codec.values():
            both = sorted(plain.keys() & codec.keys())
            gains = [1 - codec[at]["step_seconds"] / plain[at]["step_seconds"] for at in both]
            for (a, low), (b, high) in pairwise(zip(both, gains, strict=True)):
                if (low > GAIN) != (high > GAIN):
                    share = (low - GAIN) / (low - high)
                    where = exp(log(a) + share * log(b / a))
                    found.append(BreakEvenPoint(codec[a], where, below=low > GAIN))
    return found
