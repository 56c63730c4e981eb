"""Runs commands of any checkout of commsched, each in a fork of one process that has loaded it.

This file starts itself as that process, which imports commsched of the checkout and no tests.
"""

import importlib.util
import json
import os
import runpy
import shlex
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# Run first, so that what is loaded need not be loaded again for each command.
WARMING = """
plan resnet32 --machine localhost --planner greedy -o plan.json --json
simulate plan.json -o timeline.json --json
price 1000 --machine localhost --json
"""


class Checkout:
    """Runs commands of a checkout, in a folder of its own, by a process that forks for each."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.folder = folder
        self.seconds = 0.0  # of a core, that commands have taken
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())],
            cwd=folder,
            env=os.environ | ONE_THREAD | {"PYTHONPATH": str(tree.resolve())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        loaded = self._answer()
        if not Path(loaded).is_relative_to(tree.resolve()):
            raise SystemExit(f"commsched was loaded from {loaded}, not from {tree}")

    def run(self, command: str) -> Any:
        """Run `commsched COMMAND`; what it prints as JSON, None where that is not JSON."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(shlex.split(command)) + "\n")
        self._process.stdin.flush()
        words = self._answer().split()
        status, self.seconds = int(words[0]), self.seconds + float(words[1])
        output, errors = ((self.folder / name).read_text() for name in ("stdout", "stderr"))
        if status:
            last = (errors.strip().splitlines() or [""])[-1]
            print(f"exit {status}: commsched {command}\n  {last}", file=sys.stderr, flush=True)
        try:
            return json.loads(output)
        except ValueError:
            return None

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise SystemExit("the process that runs commsched has ended")
        return line


def serve() -> None:
    """Read a command per line, run it in a fork, answer with its status and seconds of a core."""
    sys.path.pop(0)  # the folder of this script, which `python -m` would not have
    answers = os.dup(1)
    found = importlib.util.find_spec("commsched")
    os.write(answers, f"{found.origin if found else 'nowhere'}\n".encode())
    _redirect()
    json.JSONEncoder.default = _item  # type: ignore[assignment, method-assign]
    for command in WARMING.strip().splitlines():
        _invoke(command.split())
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _redirect()
            os._exit(_invoke(json.loads(line)))
        _, status, used = os.wait4(pid, 0)
        spent = used.ru_utime + used.ru_stime
        os.write(answers, f"{os.waitstatus_to_exitcode(status)} {spent}\n".encode())


def _item(_: json.JSONEncoder, o: Any) -> Any:
    """Let json write a NumPy scalar: some reports of 0.1 hold a bool of NumPy, and fail."""
    if hasattr(o, "item"):
        return o.item()
    raise TypeError(f"{type(o).__name__} is not JSON")


def _redirect() -> None:
    """Write to the files stdout and stderr from here on."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, number)
        os.close(opened)


def _invoke(words: Sequence[str]) -> int:
    """Do what `python -m commsched WORDS` does in this process; the exit status."""
    sys.argv = ["commsched", *words]
    status = 0
    try:
        runpy.run_module("commsched", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    serve()
