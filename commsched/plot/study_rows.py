"""The rows of a study's table that a picture draws, and errors for rows that it cannot draw."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from commsched.errors import CommschedError
from commsched.nearest_name import nearest
from commsched.plot.study_columns import (
    AXES,
    KNOWN,
    PER_BATCH,
    Row,
    digits,
    order_of,
    text_of,
    there,
    value_of,
)


def priced(rows: Sequence[Row], prices: Mapping[str, float]) -> list[Row]:
    """Return rows with the money per hour of the machines whose nodes have a price."""
    known = dict.fromkeys(one["machine"] for one in rows)
    for name in prices:
        if name not in known:
            raise CommschedError(
                f"--price-per-hour {name}: no row is of that machine; those of the table are"
                f" {', '.join(known)}{nearest(name, list(known))}"
            )
    return [
        {**one, "money_per_hour": prices[one["machine"]] * one["nodes"]}
        if one["machine"] in prices and one["nodes"]
        else one
        for one in rows
    ]


def by_batch(rows: Sequence[Row]) -> list[Row]:
    """Return rows with their numbers per batch, if they tell the number of batches of a step."""

    def more(one: Row) -> dict[str, float]:
        pairs = [(KNOWN[a].name, KNOWN[b].name) for a, b in PER_BATCH.items() if there(one, a)]
        return {name: one[whole] / one["batches"] for whole, name in pairs}

    return [{**one, **more(one)} if one.get("batches") else one for one in rows]


def fair_axes(rows: Sequence[Row], where: Mapping[str, str], x: str) -> tuple[str, str]:
    """Name the axes of a front: per batch if the chosen rows' numbers of batches differ."""
    rows = [one for one in rows if chosen(one, where)]
    batches = {one.get("batches") for one in rows}
    if len(batches) > 1 and all(there(one, "batch") for one in rows):
        return PER_BATCH.get(x, x), "batch"
    return x, "step"


def as_texts(where: Mapping[str, str]) -> dict[str, str]:
    """Return the values of --where in the form of `text_of`; quantities may have their units."""
    found = dict(where)
    for name, word in where.items():
        column = KNOWN[name]
        if column.read is not None:
            with suppress(CommschedError):  # a number without a unit is a value of the axis
                found[name] = digits(column.read(word) / column.scale)
    return found


def chosen(row: Row, where: Mapping[str, str]) -> bool:
    """Tell whether a row has these texts in these columns."""
    return all(text_of(row, name) == text for name, text in where.items())


def check_chosen(
    rows: Sequence[Row], where: Mapping[str, str], words: Mapping[str, str], shown: Sequence[str]
) -> None:
    """Raise an error if no row is chosen; `where` and `words`: see `as_texts`."""
    rows = [one for one in rows if all(there(one, name) for name in shown)]
    if not rows:
        raise CommschedError(
            f"no row has {', '.join(shown)}: a picture needs plans"
            + ("; --price-per-hour MACHINE=MONEY says what a node costs" * ("money" in shown))
        )
    for name, text in where.items():
        if not any(chosen(one, {name: text}) for one in rows):
            ordered = sorted(rows, key=lambda one: order_of(one, name))
            known = ", ".join(dict.fromkeys(text_of(one, name) for one in ordered))
            raise CommschedError(
                f"--where {name}={words[name]}: no row has that; the values of rows with a"
                f" plan are {known}"
            )
    if not any(chosen(one, where) for one in rows):
        asked = " ".join(f"{name}={word}" for name, word in words.items())
        raise CommschedError(f"--where {asked}: each is in some row, but no row has all")


def check_axes(names: Sequence[str]) -> None:
    """Reject a heat map over columns that are not axes of a study."""
    for name in names:
        if name not in AXES:
            raise CommschedError(
                f"a heat map lies over two axes of the study, and {name!r} is none of"
                f" {', '.join(AXES)}: give --x and --y"
            )


def check_apart(rows: Sequence[Row], names: Sequence[str], y: str, near: float) -> None:
    """Reject rows with different values but equal columns, which a picture would draw as one.

    near: share by which equal values may differ.
    """
    seen: dict[tuple[str, ...], Row] = {}
    for one in rows:
        other = seen.setdefault(tuple(text_of(one, name) for name in names), one)
        if abs(value_of(one, y) - value_of(other, y)) > near * abs(value_of(other, y)):
            alike = ", ".join(f"{name}={text_of(one, name)}" for name in names)
            raise CommschedError(
                f"rows {other['cell']} and {one['cell']} differ in {y}, and in nothing by"
                f" which a picture tells rows apart ({alike}); draw a table of each study"
            )
