"""One broken file for one target: made from a seed, tried, and kept as a file if it fails."""

import base64
import contextlib
import hashlib
import io
import json
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from zipfile import BadZipFile

from commsched.errors import CommschedError
from tests.nightly.fuzz import mutations
from tests.nightly.fuzz.targets import MUTATIONS, SUFFIXES, TARGETS, Target, run

SECONDS = 20  # of processor time for one case
WAITING = 120.0  # s in which a case ends even beside much other work
MEMORY = 6 * 2**30  # B of address space, numpy's and matplotlib's libraries included
LONGEST = 5_000  # characters of an error
# What a mutation raises where another one has broken the file already.
BROKEN = (ValueError, LookupError, RecursionError, NotImplementedError, BadZipFile, struct.error)
SPECIAL = 0.03  # share of special files
OTHER = 0.1  # share of files of another kind
AGAIN = 0.3  # share of files that are broken once more
KEPT = Path(__file__).parent / "cases"


class TimeIsUp(BaseException):
    """A case takes too long."""


@dataclass(frozen=True)
class Case:
    """A file's content, or the kind of a special file, and what reads it."""

    target: Target
    content: bytes
    special: str = ""

    def put(self, folder: Path) -> Path:
        """Make the file in a folder."""
        kind = self.target.kind
        path = folder / (
            "manifest.json" if kind == "manifest" else f"f{SUFFIXES.get(kind, '.json')}"
        )
        if path.is_symlink() or path.exists():
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        if self.special:
            mutations.make_special(path, self.special)
        else:
            path.write_bytes(self.content)
        return path

    def keep(self, said: str, folder: Path = KEPT) -> Path:
        """Write the case as a file, from which a test is made."""
        data = {
            "target": self.target.name,
            "special": self.special,
            "said": said.rstrip().splitlines()[-1][:300],
            "content": base64.b85encode(self.content).decode(),
        }
        text = json.dumps(data, indent=1) + "\n"
        path = folder / f"{hashlib.sha256(self.content + text.encode()).hexdigest()[:12]}.json"
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


def kept(path: Path) -> Case:
    """Read a case of `keep`."""
    data = json.loads(path.read_text())
    target = next(each for each in TARGETS if each.name == data["target"])
    return Case(target, base64.b85decode(data["content"]), data["special"])


def drawn(seed: str, good: Mapping[str, bytes]) -> Case:
    """Draw a target, and a broken file for it, or one of another kind, which may be whole."""
    rng = random.Random(seed)
    target = rng.choices(TARGETS, [each.weight for each in TARGETS])[0]
    if rng.random() < SPECIAL:
        return Case(target, b"", rng.choice(mutations.SPECIAL))
    other = rng.random() < OTHER
    kind = rng.choice(sorted(good)) if other else target.kind
    content = good[kind]
    among = MUTATIONS.get(kind, mutations.JSON)
    for _ in range(rng.randrange(2) if other else 1 + (rng.random() < AGAIN)):
        with contextlib.suppress(*BROKEN):  # broken already
            content = rng.choice(among)(rng, content)
    return Case(target, content)


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Limit the time and the memory of a case in this process."""

    def stop(*_: object) -> None:
        raise TimeIsUp

    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, before[1]))
    handlers = {number: signal.signal(number, stop) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WAITING)  # of a case that waits for what never comes
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def tried(case: Case, good: Mapping[str, Path], folder: Path) -> str:
    """Say what is wrong with how a target takes a case; "" if nothing is."""
    if case.target.mpi:
        return _in_child(case, good, folder)
    path = case.put(folder)
    out, error = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error), limits():
            status = run(case.target, path, good, folder)
    except CommschedError as refusal:  # of a reader
        status = 2
        error.write(f"commsched: {refusal}\n")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 3
    except TimeIsUp:
        return f"more than {SECONDS} s of processor time, or {WAITING} s\n{traceback.format_exc()}"
    except BaseException:  # whatever else leaves a command is what we look for
        return traceback.format_exc()
    return wrong(status, out.getvalue(), error.getvalue())


def _in_child(case: Case, good: Mapping[str, Path], folder: Path) -> str:
    """Say what is wrong with how a command of MPI takes a case, in a child of this process."""
    path = case.put(folder)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        child = os.fork()
        if child == 0:
            _command(case, path, good, folder, (out.fileno(), error.fileno()))
        status = _waited(child)
        for file in (out, error):
            file.seek(0)
        said, told = (file.read().decode(errors="replace") for file in (out, error))
    return f"more than {WAITING} s\n{told}" if status is None else wrong(status, said, told)


def _command(
    case: Case, path: Path, good: Mapping[str, Path], folder: Path, streams: tuple[int, int]
) -> NoReturn:
    """Run a command as a process of its own would, and end this process."""
    status = 70
    try:
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        for number, stream in enumerate(streams, 1):
            os.dup2(stream, number)
        sys.stdout, sys.stderr = (os.fdopen(k, "w", closefd=False) for k in (1, 2))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        status = run(case.target, path, good, folder)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 3
    except BaseException:  # whatever else leaves a command is what we look for
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _waited(child: int) -> int | None:
    """Return the exit status of a child; None: it did not end in time and was killed."""
    end = time.monotonic() + WAITING
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def wrong(status: int, out: str, error: str) -> str:
    """Say what is wrong with a command's end; "" if nothing is."""
    if status not in (0, 1, 2):
        return f"status {status}: {error}"
    if "Traceback" in error:
        return error
    for text in (out, error):
        strange = [c for c in text if not (c.isprintable() or c == "\n")]
        if strange:
            return f"unprintable {strange[0]!a} in what it says: {text!a}"
    said = [line for line in error.splitlines() if line.startswith("commsched: ")]
    if status == 2 and (not said or len(error) > LONGEST):
        return f"no sentence, or too long a one: {error[:LONGEST]}"
    return ""
