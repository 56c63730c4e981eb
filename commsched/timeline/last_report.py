"""The last operations of each rank of a job, side by side, and where the ranks diverged.

Beside `measured.json`, rank 3 keeps `measured.json.rank3.last`: the header line of a part, a ROW
per stream with the operation that began last, and KEPT rows, each written over the oldest one.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isinf
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import msgspec

from commsched import files
from commsched.errors import CommschedError
from commsched.text_table import table
from commsched.timeline.parts import PartHeader, PartRow, find
from commsched.units import count, seconds

LAST = "last"
KEPT = 1000  # finished operations of a rank in the file
# Number of the row; step, start, end, waited, nbytes, coded and decided (NaN: nothing) as in a
# span; stream and name, cut; the number again: it differs in a row that was being written.
ROW = Struct("<Qq6d16s200sQ")
LARGEST = 2**26  # B of a file
BEFORE, AFTER, COLUMNS = 4, 8, 8  # operations before and after the divergence; ranks in a table

Key = tuple[int, str]  # step and name


class RankOperations(NamedTuple):
    """The last operations of one rank."""

    ended: list[PartRow]  # in the order of their ends
    under_way: list[PartRow]

    @property
    def keys(self) -> set[Key]:
        """The finished operations."""
        return {(row.step, row.name) for row in self.ended}


class Divergence(NamedTuple):
    """The first operation that some ranks have ended, or begun, and other ranks have not."""

    step: int
    name: str
    what: str  # "ended" or "begun"
    ahead: list[int]  # ranks that have
    missing: list[int]  # ranks that have not ended or begun the operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """The last operations of a job's ranks."""

    header: PartHeader
    of: Mapping[int, RankOperations]
    torn: int  # rows that were being written at the end

    @property
    def order(self) -> dict[str, int]:
        """The position of each operation in the program; unknown operations follow."""
        names = [r.name for found in self.of.values() for r in (*found.ended, *found.under_way)]
        return {name: i for i, name in enumerate(dict.fromkeys([*self.header.names, *names]))}


def base(path: str | Path) -> Path | None:
    """Return X for `X.last` and `X.rank3.last`, files of last operations; None for other files."""
    path = Path(path)
    found = re.fullmatch(rf"(.+?)(\.rank(0|[1-9][0-9]{{0,9}}))?\.{LAST}", path.name)
    return path.with_name(found[1]) if found else None


def read(path: str | Path) -> Operations:
    """Read the files of last operations of a job's ranks."""
    where = base(path) or Path(path)
    headers, of, torn = [], {}, 0
    for rank, part in find(where, LAST).items():
        first, _, content = files.read_bytes(part, LARGEST).partition(b"\n")
        header = files.convert(files.parse(first, str(part)), PartHeader, str(part))
        headers.append(header)
        cut = len(header.streams) * ROW.size
        (begun, _), (rows, wrong) = _rows(content[:cut]), _rows(content[cut:])
        of[rank] = _operations(begun, rows)
        torn += wrong
    if not headers:
        raise CommschedError(f"{where}: no last operations ({where.name}.rank0.{LAST}, ...) found")
    if len({(header.plan_hash, header.ranks) for header in headers}) > 1:
        raise CommschedError(f"{where}: the last operations are of different jobs")
    return Operations(header=headers[0], of=of, torn=torn)


def _rows(content: bytes) -> tuple[list[PartRow], int]:
    """Decode rows; skip and count those that were being written."""
    found: list[PartRow] = []
    wrong = 0
    whole = len(content) // ROW.size * ROW.size
    for number, step, *numbers, decided, stream, name, again in ROW.iter_unpack(content[:whole]):
        words = (each.rstrip(b"\0").decode(errors="replace") for each in (stream, name))
        row = (*words, step, *numbers, None if isinf(decided) else decided)
        try:
            if number != again:
                raise ValueError
            found += [msgspec.convert(row, PartRow)] if number else []
        except ValueError:  # msgspec's errors, too
            wrong += 1
    return found, wrong


def _operations(begun: list[PartRow], rows: list[PartRow]) -> RankOperations:
    ended = sorted(rows, key=lambda row: row.end)
    found = RankOperations(ended, [])
    oldest = ended[0].end if len(ended) >= KEPT else float("-inf")
    keys = found.keys
    under_way = [r for r in begun if (r.step, r.name) not in keys and r.start >= oldest]
    return found._replace(under_way=under_way)


def divergence(found: Operations) -> Divergence | None:
    """Return the first operation, in program order, that not all its ranks have ended.

    Without such an operation, return the first that not all its ranks have begun. A name of several
    steps belongs to the ranks that have the name; a name of one step to all ranks.
    """
    ended = {rank: operations.keys for rank, operations in found.of.items()}
    begun = {
        rank: ended[rank] | {(row.step, row.name) for row in operations.under_way}
        for rank, operations in found.of.items()
    }
    return _parted(found, ended, begun, "ended") or _parted(found, begun, begun, "begun")


def _parted(
    found: Operations, keys: Mapping[int, set[Key]], begun: Mapping[int, set[Key]], what: str
) -> Divergence | None:
    full = [o.ended[0].step + 1 for o in found.of.values() if len(o.ended) >= KEPT]
    since, order = max(full, default=0), found.order
    names = {rank: {name for _, name in begun[rank]} for rank in begun}
    every = sorted(set().union(*keys.values()), key=lambda key: (key[0], order[key[1]]))
    steps = Counter(name for _, name in every)
    for step, name in every:
        expected = [r for r in keys if name in names[r] or steps[name] == 1]
        missing = [r for r in expected if (step, name) not in keys[r]]
        if missing and step >= since:
            ahead = [r for r in expected if r not in missing]
            return Divergence(step, name, what, ahead, missing)
    return None


def as_data(found: Operations) -> dict[str, Any]:
    """Return the last operations as JSON data, in s on each rank's own clock."""
    apart = divergence(found)
    fields = PartRow._fields
    return {
        "plan": found.header.plan_hash,
        "ranks": found.header.ranks,
        "diverged": None if apart is None else apart._asdict(),
        "operations": {
            str(rank): {
                what: [
                    # NaN for an operation without a decision; JSON has no NaN
                    {k: v for k, v in zip(fields, row, strict=True) if v == v}
                    for row in rows
                ]
                for what, rows in operations._asdict().items()
            }
            for rank, operations in found.of.items()
        },
    }


def words(found: Operations) -> str:
    """Return the last operations as text."""
    header, apart = found.header, divergence(found)
    text = [f"last operations of {count(header.ranks, 'rank')}, plan {header.plan_hash[:12]}"]
    missing = sorted(set(range(min(header.ranks, 2**20))) - set(found.of))
    if missing:
        text.append(f"warning: {_ranks(missing)} left no file here")
    if found.torn:
        text.append(f"warning: {count(found.torn, 'row')} torn at the end, left out")
    if apart is None:
        text.append("no rank is ahead of another: all have ended and begun the same operations")
    else:
        text.append(
            f"the ranks diverged at {apart.name} of step {apart.step}: {apart.what} on"
            f" {_ranks(apart.ahead)}, not on {_ranks(apart.missing)}"
        )
    rows = [
        (str(rank), str(len(o.ended)), _last(o), "; ".join(_name(r) for r in o.under_way) or "-")
        for rank, o in found.of.items()
    ]
    text.append(table(("rank", "ended", "the last one", "under way"), rows, {0, 1}))
    return "\n".join([*text, _side_by_side(found, apart)])


def _name(row: PartRow) -> str:
    return f"{row.name} of step {row.step}"


def _last(operations: RankOperations) -> str:
    return _name(operations.ended[-1]) if operations.ended else "-"


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:COLUMNS]))
    more = ", ..." if len(ranks) > COLUMNS else ""
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}{more}"


def _side_by_side(found: Operations, apart: Divergence | None) -> str:
    """Return a table of each rank's seconds in operations around the divergence, or the last."""
    order = found.order
    of = found.of.values()
    every = {(row.step, row.name) for o in of for row in (*o.ended, *o.under_way)}
    keys = sorted(every, key=lambda key: (key[0], order[key[1]]))
    at = len(keys) if apart is None else keys.index((apart.step, apart.name))
    shown = keys[max(0, at - BEFORE) : at + AFTER]
    ranks = list(found.of)
    if apart is not None:
        ranks = sorted((apart.missing[: COLUMNS // 2] + apart.ahead)[:COLUMNS])
    ranks = ranks[:COLUMNS]
    cells = [
        {(row.step, row.name): seconds(row.end - row.start) for row in found.of[rank].ended}
        | {(row.step, row.name): "under way" for row in found.of[rank].under_way}
        for rank in ranks
    ]
    rows = [(str(s), name, *(own.get((s, name), "-") for own in cells)) for s, name in shown]
    heads = [f"rank {rank}" for rank in ranks]
    return table(("step", "operation", *heads), rows, {0, *range(2, 2 + len(ranks))})
