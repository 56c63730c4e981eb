"""Times of all-reduces and messages by size, from the output of nccl-tests, rccl-tests and OSU.

Formats: nccl-tests 2.x (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md; rccl-tests writes the
same), OSU Micro-Benchmarks 5 to 7 (mvapich.cse.ohio-state.edu/benchmarks).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple

from commsched import files
from commsched.errors import CommschedError
from commsched.units import count

Points = list[tuple[float, float]]  # (bytes, s)
ALL_REDUCE, MESSAGE, STREAM, SHIFT = "all-reduce", "message", "stream", "shift"
# Tests that the fit has a model of, by the names that they print, in lower case.
OSU = {"latency": MESSAGE, "bandwidth": STREAM, "allreduce latency": ALL_REDUCE}
NCCL = {"all_reduce": ALL_REDUCE, "sendrecv": SHIFT}
READ = "all_reduce_perf, sendrecv_perf, osu_latency, osu_bw and osu_allreduce"
LEAST = 4  # sizes: enough to fit some and leave out at least one
TITLE = re.compile(r"#\s*OSU MPI\S*\s+(.+?)\s+Test\b")
NAMED = re.compile(r"#.*\b(\w+)_perf\b")
RANK = re.compile(r"#\s+Rank\s+\d+(\s+Group\s+\d+)?\s.*\bon\s+(\S+)\s+device\b")
BEGIN = re.compile(r"#\s*(?:Collective test starting|n?Thread\b.*\bminBytes)")
FAILED = "Fail"
VERDICTS = ("Pass", FAILED)  # of a validation: the last column of OSU's tests with -c
TIME, WRONG = "time", "#wrong"
COLUMNS = (TIME, "algbw", "busbw", WRONG) * 2  # first out of place, then in place
BEFORE = ("#", "size", "count", "type", "redop", "root")
HEADER = re.compile(r"#\s+size\s+count\s.*time\s+algbw\s+busbw\b")


class Series(NamedTuple):
    """Seconds by size of one test."""

    path: str
    kind: str  # ALL_REDUCE; MESSAGE: one way; STREAM: back to back; SHIFT: each rank to the next
    title: str
    points: tuple[tuple[float, float], ...]  # (bytes, s), ascending
    lanes: tuple[int, ...] = ()  # ranks of each host; (): the output does not tell
    torn: bool = False  # the output ends in the middle


def read(path: str | Path) -> list[Series]:
    """Read all tests of a file that the fit has a model of; raise an error if there is none."""
    found, others = [], []
    lines = [line.strip() for line in files.read_text(path).splitlines()]
    for test in _sections(lines):
        series = _osu(str(path), test) if TITLE.match(test[0]) else _nccl(str(path), test)
        if isinstance(series, str):
            others.append(series)
        else:
            found.append(series)
    if not found:
        told = f"has {', '.join(dict.fromkeys(others))}" if others else "has no test's output"
        raise CommschedError(f"{path}: {told}; those of {READ} are read")
    return found


def _sections(lines: list[str]) -> Iterator[list[str]]:
    """Yield the lines of each test, beginning with its title."""
    found = [i for i, line in enumerate(lines) if TITLE.match(line) or BEGIN.match(line)]
    begin = [i for i in found if i - 1 not in found]  # nccl-tests print one or two title lines
    for first, last in zip(begin, [*begin, len(lines)][1:], strict=True):
        yield lines[first:last]


def _osu(path: str, lines: list[str]) -> Series | str:
    """Read a test of OSU: bytes, and us or 10^6 B/s; return the name of a test without a model."""
    match = TITLE.match(lines[0])
    assert match
    title = match[1]
    kind = OSU.get(title.lower())
    if kind is None:
        return f"OSU's {title}"
    torn = len(set(map(_decimals, lines[-2:])) - {None}) > 1
    points = []
    for row in _rows(lines[: len(lines) - torn], 2, path):
        size, value = row[0], row[1]
        seconds = size / (value * 1e6) if kind == STREAM and value else value * 1e-6
        if seconds > 0:
            points.append((size, seconds))
    ascending = _ascending(points, path, lines[0])
    return Series(path, kind, f"OSU's {title}", ascending, torn=torn)


def _decimals(line: str) -> int | None:
    """Count the decimals of a row's value; all rows have equally many."""
    words = line.split()
    if len(words) < 2 or None in map(_number, words[:2]):
        return None  # no row
    return len(words[1].partition(".")[2])


def _nccl(path: str, lines: list[str]) -> Series | str:
    """Read a test of nccl-tests: times in place, or out of place if it has no others."""
    ranks = [match for match in map(RANK.match, lines) if match]
    hosts = [match[2] for match in ranks]
    lanes = tuple(hosts.count(host) for host in dict.fromkeys(hosts))
    columns = _columns(lines)
    body = [words for words in map(str.split, lines) if "".join(words[:2]).isdecimal()]
    width = len(body[0]) if body else 0
    whole = [words for words in body if len(words) == width > len(columns)]
    rows = [_cells(columns, words) for words in whole]
    if TIME not in columns:
        raise CommschedError(
            f"{path}: its times are those of the host's calls; run the test without -C"
        )
    times = [next(filter(None, map(_number, reversed(row[TIME]))), None) for row in rows]
    sizes = [words[0] for words in whole]
    points = [(float(size), time * 1e-6) for size, time in zip(sizes, times, strict=True) if time]
    ascending = _ascending(points, path, lines[0])
    named = next((match[1] for match in map(NAMED.match, lines) if match), "")
    kind = NCCL.get(named) if named else _kind(whole, rows, sum(lanes))
    if kind is None:
        return f"{named}_perf" if named else "an unnamed test of nccl-tests"
    if len({match[1] for match in ranks}) > 1:
        raise CommschedError(
            f"{path}: several groups of ranks were measured at once; run the test without"
            " NCCL_TESTS_SPLIT"
        )
    for size, row in zip(sizes, rows, strict=True):
        if any(map(_number, row.get(WRONG, ()))):
            raise _failed(path, size)
    torn = len(whole) < len(body) or not any("Avg bus bandwidth" in line for line in lines)
    return Series(path, kind, f"nccl-tests' {kind}", ascending, lanes, torn)


def _columns(lines: list[str]) -> tuple[str, ...]:
    """Return a column name for each word of a row, from the column of the time on."""
    heads = (line.split() for line in lines if HEADER.match(line))
    names = [name for name in next(heads, COLUMNS) if name not in BEFORE]
    return tuple(name for name in names for _ in range(1 + (name == "timestamp")))  # it is 2 words


def _cells(columns: Sequence[str], words: Sequence[str]) -> dict[str, list[str]]:
    """Return a row's words by the names of their columns: out of place first, then in place."""
    found: dict[str, list[str]] = {}
    for name, word in zip(columns, words[-len(columns) :], strict=True):
        found.setdefault(name, []).append(word)
    return found


def _kind(
    rows: Sequence[Sequence[str]], cells: Sequence[Mapping[str, Sequence[str]]], ranks: int
) -> str | None:
    """Recognise an unnamed test by its operation and the ratio of bus to algorithm bandwidth.

    The ratio is 2 (p - 1) / p for an all-reduce of p ranks, and 1 for sends to the next rank. Other
    tests of all ranks (root -1) have (p - 1) / p; None if the printed digits fit these, too.
    """
    if not ranks or not rows or rows[0][4] != "-1":
        return None
    others = (ranks - 1) / ranks
    adds = rows[0][3] not in ("none", "-1")
    kind, ratio = (ALL_REDUCE, 2 * others) if adds else (SHIFT, 1.0)
    limits = [_ratio(row) for row in cells]
    fit = [all(low <= tried <= high for low, high in limits) for tried in (ratio, others)]
    return kind if fit == [True, False] else None


def _ratio(cells: Mapping[str, Sequence[str]]) -> tuple[float, float]:
    """Return the range of bus / algorithm bandwidth that the rounded digits of a row allow."""
    rates = cells["algbw"][0], cells["busbw"][0]
    algorithm, bus = map(_number, rates)
    if algorithm is None or bus is None:
        return 0.0, inf
    half, bus_half = (0.5001 * 0.1 ** len(word.partition(".")[2]) for word in rates)
    most = (bus + bus_half) / (algorithm - half) if algorithm > half else inf
    return (bus - bus_half) / (algorithm + half), most


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:  # N/A
        return None


def _rows(lines: list[str], least: int, path: str) -> Iterator[list[float]]:
    """Yield the rows of numbers without a validation's verdict; raise an error if a row failed."""
    for line in lines:
        words = line.split()
        verdict = words.pop() if words and words[-1] in VERDICTS else ""
        row = [_number(word) for word in words]
        numbers = [value for value in row if value is not None]
        if len(numbers) == len(row) >= least:
            if verdict == FAILED:
                raise _failed(path, words[0])
            yield numbers


def _failed(path: str, size: str) -> CommschedError:
    return CommschedError(
        f"{path}: the validation of {size} B failed; a link is fitted to messages that arrive"
    )


def _ascending(points: Points, path: str, title: str) -> tuple[tuple[float, float], ...]:
    """Return the points sorted by size; a size that occurs twice gets its shortest time."""
    if any(not (0 <= size < 1e15 and seconds < 1e6) for size, seconds in points):
        raise CommschedError(f"{path}: a size or a time is out of range")
    best: dict[float, float] = {}
    for size, seconds in points:
        best[size] = min(seconds, best.get(size, seconds))
    if len(best) < LEAST:
        raise CommschedError(
            f"{path}: {count(len(best), 'size')} after {title!a}, and {LEAST} are needed; it may be"
            " cut off: run it again, as with -b 8 -e 1G -f 2"
        )
    return tuple(sorted(best.items()))
