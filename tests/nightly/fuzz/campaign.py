"""Break files for every command and reader: python -m tests.nightly.fuzz --cases 20000.

Prints the seed, by default the day's, and a line per failure; keeps each failing case in
tests/nightly/fuzz/cases, where tests/test_fuzz_cases.py tries it ever after. Exits with status 1 if
there is one.
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from tests.nightly.fuzz.case import KEPT, Case, drawn, tried
from tests.nightly.fuzz.targets import good_files

STRIDE = 50  # cases that a worker takes at once
CASES = 20_000
STUCK = 900.0  # s


def today() -> int:
    """The day's seed."""
    return date.today().toordinal()


def fuzz(seed: int, cases: int, workers: int, keep: Path) -> Iterator[str]:
    """Try cases in worker processes; yield a line per failure."""
    parts = [range(at, min(at + STRIDE, cases)) for at in range(0, cases, STRIDE)]
    jobs = [([f"{seed}:{n}" for n in part], keep) for part in parts]
    # A fresh process now and then: what a case leaves behind does not pile up.
    with multiprocessing.get_context("spawn").Pool(workers, maxtasksperchild=40) as pool:
        results = pool.imap_unordered(_failures, jobs)
        for _ in jobs:
            yield from results.next(timeout=STUCK)  # a case may hang where no signal ends it


def _failures(job: tuple[list[str], Path]) -> list[str]:
    seeds, keep = job
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)
        (folder / "good").mkdir()
        good = _good(folder / "good")
        contents = {kind: path.read_bytes() for kind, path in good.items()}
        for seed in seeds:
            case = drawn(seed, contents)
            work = folder / "work"
            work.mkdir(exist_ok=True)
            if said := tried(case, good, work):
                found.append(_line(seed, case, said, keep))
    return found


def _good(folder: Path) -> dict[str, Path]:
    """Make the good files once in a process, and copy them from then on."""
    if not _MADE:
        made = good_files(folder)
        _MADE.update({kind: (path.name, path.read_bytes()) for kind, path in made.items()})
    for name, content in _MADE.values():
        (folder / name).write_bytes(content)
    return {kind: folder / name for kind, (name, _) in _MADE.items()}


_MADE: dict[str, tuple[str, bytes]] = {}


def _line(seed: str, case: Case, said: str, keep: Path) -> str:
    path = case.keep(said, keep)
    return f"{seed} {case.target.name} {path.name}\n{said.strip()[-1500:]}"


def main() -> int:
    """Fuzz, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=today())
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=Path, default=KEPT, help="folder for failing cases")
    args = parser.parse_args()
    begun = time.monotonic()
    print(f"seed {args.seed}", flush=True)
    kinds: Counter[str] = Counter()
    for line in fuzz(args.seed, args.cases, args.workers, args.keep.resolve()):
        kinds[line.splitlines()[-1][:100]] += 1
        print(line, flush=True)
    print(f"{args.cases} cases in {time.monotonic() - begun:.0f} s")
    for kind, count in kinds.most_common():
        print(f"{count:6} {kind}")
    return int(bool(kinds))
