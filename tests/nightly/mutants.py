"""Change the source in one place at a time, and tell which test notices each change.

    python tests/nightly/mutants.py --tree DIR -o RESULTS.json [--old] [--only NAME,...] [--whole]
    python tests/nightly/mutants.py --table OLD.json NEW.json

The changes are in mutants.toml. Each one is made in a temporary copy of the tree, where the tests
run that are likely to fail, and with --whole all daily tests if those pass. A test that does not
end in time counts as failed; one that fails without the change, too, is an error. Results are kept
after every mutant: a second call goes on from there.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(__file__).with_suffix(".toml")
LIKELY = 600.0  # s for one command of likely killers; the slowest of them takes 60 s unchanged
RANKS = 240.0  # s for the same on several ranks; 30 s unchanged
HANGS = "timeout=120"  # s for one of their tests; all daily tests have the limit of setup.cfg
WHOLE = 3600.0  # s for all daily tests, which take 16 minutes on two cores
MARK = "COMMSCHED_MUTANT"  # in the environment of every process that a run of tests starts
LEFT_OUT = (".git", ".venv", "__pycache__", "*.egg-info", "build")  # of a tree when it is copied
PYTEST = (sys.executable, "-m", "pytest", "-xq", "-rfE", "--tb=no", "-p", "no:cacheprovider")
FAILED = (1, 2, 3)  # exit statuses of pytest where a test or an import fails; others: no such test


class MutantsError(Exception):
    """Something that mutants.toml or the tree has to be changed for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One wrong change, and the tests that are likely to notice it."""

    name: str
    kind: str
    what: str  # in one sentence
    codes: tuple[tuple[str, str], ...]  # (snippet, replacement) for one version of the code each
    killers: tuple[str, ...]  # paths for pytest, "N: PATH" with N ranks; empty: all daily tests

    @property
    def digest(self) -> str:
        """Short hash of all that a result depends on."""
        text = json.dumps([self.codes, self.killers])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


class Command(NamedTuple):
    """A call of pytest."""

    words: tuple[str, ...]
    tests: tuple[str, ...]  # empty: all daily tests
    limit: float  # s


def mutants(old: bool) -> list[Mutant]:
    """Read mutants.toml, with the killers of version 0.1 or of the code as it is now."""
    rows = tomllib.loads(DATA.read_text(encoding="utf-8"))["mutant"]
    found = [
        Mutant(
            name=row["name"],
            kind=row["kind"],
            what=row["what"],
            codes=tuple((code["snippet"], code["replacement"]) for code in row["code"]),
            killers=tuple(
                row.get("old_killers" if old or "new_killers" not in row else "new_killers", ())
            ),
        )
        for row in rows
    ]
    names = [each.name for each in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise MutantsError(f"two mutants are named {sorted(twice)[0]!r}")
    return found


class Tree:
    """A copy of a tree, in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        sources = sorted((folder / "commsched").rglob("*.py"))
        self._texts = {path: path.read_text(encoding="utf-8") for path in sources}

    def mutated(self, mutant: Mutant) -> tuple[Path, str]:
        """Find the file that a mutant changes, and its new text."""
        for snippet, replacement in mutant.codes:
            counts = {path: text.count(snippet) for path, text in self._texts.items()}
            if sum(counts.values()) == 1:
                path = max(counts, key=counts.__getitem__)
                text = self._texts[path].replace(snippet, replacement)
                compile(text, str(path), "exec")
                return path, text
        raise MutantsError(f"{mutant.name}: none of its snippets occurs exactly once in commsched/")

    @contextmanager
    def changed(self, path: Path, text: str) -> Iterator[None]:
        """Have another text in a file for a while."""
        try:
            self._write(path, text)
            yield
        finally:
            self._write(path, self._texts[path])

    def _write(self, path: Path, text: str) -> None:
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()  # which Python takes for new if size and second are the same
        path.write_text(text, encoding="utf-8")


def commands(killers: Sequence[str]) -> Iterator[Command]:
    """Tests of one process first, then those of several ranks; no killers: all daily tests."""
    if not killers:
        yield Command((*PYTEST, "-n", "auto"), (), WHOLE)
    alone = tuple(each for each in killers if ": " not in each)
    if alone:
        yield Command((*PYTEST, "-o", HANGS), alone, LIKELY)
    for ranks, _, path in (each.partition(": ") for each in killers if each not in alone):
        yield Command(("mpiexec", "-n", ranks, *PYTEST, "-o", HANGS), (path,), RANKS)


def run(command: Command, folder: Path) -> str:
    """Run tests in a tree; returns the first that fails, "" where none does."""
    mark = uuid.uuid4().hex
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ours = {"PYTHONPATH": str(folder), "PATH": programs, MARK: mark}
    env = (
        os.environ | ours | {"CI": "true"}
    )  # so that hypothesis draws the same examples every time
    words, status = [*command.words, *command.tests], None
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            words, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
        with suppress(subprocess.TimeoutExpired):
            status = process.wait(command.limit)
        end(mark)
        process.wait()
        out.seek(0)
        output = out.read().decode(errors="replace")
    if status == 0:
        return ""
    names = re.findall(r"^(?:FAILED|ERROR|rank \d+:) (tests/.*?)(?: - .*)?$", output, re.MULTILINE)
    if status is None:
        return f"{names[0]}, without an end" if names else f"no end after {command.limit:.0f} s"
    if words[0] == sys.executable and status not in FAILED and not names:
        raise MutantsError(f"{' '.join(words)}: status {status}\n{output[-2000:]}")
    return names[0] if names else f"status {status}"


def end(mark: str) -> None:
    """Kill all that a run has left behind: ranks have process groups of their own."""
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in entry.read_bytes():
                os.kill(int(entry.parent.name), signal.SIGKILL)


class Results:
    """What is known so far, in a file that grows."""

    def __init__(self, path: Path | None, tree: Path) -> None:
        self._path = path
        self.data: dict[str, Any] = {"tree": tree.name, "sound": [], "mutants": {}}
        if path is not None and path.exists():
            self.data |= json.loads(path.read_text(encoding="utf-8"))

    def known(self, mutant: Mutant, whole: bool) -> bool:
        """Whether a mutant has its result already, of the same change and killers."""
        found = self.data["mutants"].get(mutant.name)
        if found is None or found["digest"] != mutant.digest:
            return False
        return bool(found["killed"] or found["whole"] or not whole)

    def confirm(self, command: Command, by: str, tree: Tree) -> None:
        """Make sure that the test which failed passes where nothing is changed."""
        test = re.split(r"\[|,", by)[0]
        tests = (test,) if test.startswith("tests/") else command.tests
        key = " ".join((*command.words[: command.words.index(sys.executable)], *tests))
        if key in self.data["sound"]:
            return
        if run(command._replace(tests=tests), tree.folder):
            raise MutantsError(f"{by} fails without the mutant, too")
        self.data["sound"].append(key)

    def add(self, mutant: Mutant, by: str, seconds: float, whole: bool) -> str:
        """Keep a result; returns it in words."""
        survived = "survived" if whole else "survived (likely killers only)"
        self.data["mutants"][mutant.name] = {
            "kind": mutant.kind,
            "what": mutant.what,
            "killed": bool(by),
            "by": by or survived,
            "seconds": round(seconds, 1),
            "whole": whole,
            "digest": mutant.digest,
        }
        self._write()
        return f"killed by {by}" if by else survived

    def _write(self) -> None:
        if self._path is not None:
            self._path.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")


def examined(mutant: Mutant, tree: Tree, results: Results, whole: bool) -> str:
    """Run the tests on one mutant, and keep what they say."""
    path, text = tree.mutated(mutant)
    begun, by = time.monotonic(), ""
    everything = [*commands(())] if whole and mutant.killers else []
    for command in [*commands(mutant.killers), *everything]:
        with tree.changed(path, text):
            by = run(command, tree.folder)
        if by:
            results.confirm(command, by, tree)
            break
    return results.add(mutant, by, time.monotonic() - begun, whole or not mutant.killers)


def examine(wanted: Sequence[Mutant], folder: Path, results: Results, whole: bool) -> list[str]:
    """Examine mutants in a copy of the tree; returns what is wrong with some of them."""
    wrong = []
    with tempfile.TemporaryDirectory(prefix="commsched-mutants-") as temporary:
        copy = Path(temporary, "tree")
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
        tree = Tree(copy)
        for number, mutant in enumerate(wanted, 1):
            if results.known(mutant, whole):
                continue
            try:
                said = examined(mutant, tree, results, whole)
            except (MutantsError, SyntaxError) as error:
                said = f"wrong: {error}"
                wrong.append(f"{mutant.name}: {error}")
            print(f"{number}/{len(wanted)} {mutant.name}: {said}", flush=True)
    return wrong


def table(old: Path, new: Path) -> Iterator[str]:
    """Lines of Markdown: the mutants of each kind that two suites kill, and those of 0.1 alone."""
    before, after = (json.loads(path.read_text(encoding="utf-8"))["mutants"] for path in (old, new))
    yield "| kind | mutants | killed by 0.1 | killed now | killed by 0.1 only |"
    yield "|---|---|---|---|---|"
    for kind in dict.fromkeys(row["kind"] for row in before.values()):
        names = [name for name, row in before.items() if row["kind"] == kind]
        by_old, by_new = (
            {n for n in names if n in rows and rows[n]["killed"]} for rows in (before, after)
        )
        lost = ", ".join(sorted(by_old - by_new))
        yield f"| {kind} | {len(names)} | {len(by_old)} | {len(by_new)} | {lost} |"


def arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Read the command line."""
    here = Path(__file__).parents[2]
    parser.add_argument("--tree", type=Path, default=here, metavar="DIR", help="default: this one")
    parser.add_argument("--old", action="store_true", help="DIR has version 0.1: use old_killers")
    parser.add_argument("--only", default="", metavar="NAME,...", help="default: all mutants")
    parser.add_argument("--whole", action="store_true", help="all daily tests where others pass")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="of results, goes on")
    parser.add_argument("--table", nargs=2, type=Path, metavar="FILE", help="compare two results")
    return parser.parse_args()


def main() -> int:
    """Exit status: 0, 1 where a mutant survived, 2 where mutants.toml does not fit the tree."""
    formatter = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    args = arguments(parser)
    if args.table:
        print("\n".join(table(*args.table)))
        return 0
    every, names = mutants(args.old), [name for name in args.only.split(",") if name]
    unknown = set(names) - {each.name for each in every}
    if unknown:
        parser.error(f"no mutant is named {min(unknown)!r}")
    wanted = [each for each in every if not names or each.name in names]
    results = Results(args.output, args.tree)
    wrong = examine(wanted, args.tree.resolve(), results, args.whole)
    found = results.data["mutants"]
    alive = [each.name for each in wanted if each.name in found and not found[each.name]["killed"]]
    print(f"{len(wanted)} mutants, {len(alive)} survived: {', '.join(alive) or 'none'}")
    print("\n".join(wrong))
    return 2 if wrong else 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
