"""Text tables with aligned columns, no wider than the terminal that shows them."""

import textwrap
from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest

from commsched.terminal import columns, printable

GAP = 2  # blanks between columns
NARROW = 12  # a column of words gets no narrower


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Collection[int] = (),
    width: int | None = None,
) -> str:
    """Align `rows` under `header`; the columns in `numbers`, counted from 0, to the right.

    Words are wrapped inside their columns so that lines have at most `width` characters, by
    default the terminal's if one shows stdout. Columns that still do not fit follow in another
    block, which repeats the first column.
    """
    lines = [[printable(cell) for cell in line] for line in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    most = columns() if width is None else width
    blocks = []
    for part in _parts(widths, numbers, most):
        right = [place for place, column in enumerate(part) if column in numbers]
        narrow = _fitting([widths[column] for column in part], right, most)
        cells = ([line[column] for column in part] for line in lines)
        blocks.append("\n".join(text for row in cells for text in _aligned(row, narrow, right)))
    return "\n\n".join(blocks)


def in_markdown(header: Sequence[object], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    lines = (header, ["---"] * len(header), *rows)
    return [f"| {' | '.join(map(str, line))} |" for line in lines]


def _parts(widths: list[int], numbers: Collection[int], most: int | None) -> list[list[int]]:
    """Return the columns of each block: all, or as many as fit beside the first one."""
    least = [
        width if column in numbers else min(width, NARROW) for column, width in enumerate(widths)
    ]
    parts = [[0]]
    for column in range(1, len(widths)):
        taken = sum(least[each] + GAP for each in parts[-1])
        if most is not None and taken + least[column] > most and len(parts[-1]) > 1:
            parts.append([0])
        parts[-1].append(column)
    return parts


def _fitting(widths: list[int], numbers: Collection[int], most: int | None) -> list[int]:
    """Narrow the widest columns of words until a line fits, or no column can be narrower."""
    widths = list(widths)
    words = [column for column in range(len(widths)) if column not in numbers]
    over = 0 if most is None else sum(widths) + GAP * (len(widths) - 1) - most
    for _ in range(over):
        widest = max(words, key=lambda column: widths[column], default=None)
        if widest is None or widths[widest] <= NARROW:
            break
        widths[widest] -= 1
    return widths


def _aligned(line: list[str], widths: list[int], numbers: Collection[int]) -> list[str]:
    """Return a row as one or more lines of text."""
    cells = [
        [cell] if len(cell) <= width else textwrap.wrap(cell, width)
        for cell, width in zip(line, widths, strict=True)
    ]
    return [
        (" " * GAP)
        .join(
            part.rjust(width) if column in numbers else part.ljust(width)
            for column, (part, width) in enumerate(zip(parts, widths, strict=True))
        )
        .rstrip()
        for parts in zip_longest(*cells, fillvalue="")
    ]
