"""The guard of a supervised rank: `python -m ... FOLDER COMMAND` runs the rank and notes its end.

After the first rank that fails, a launcher ends all ranks and their guards. So only ranks that
ended on their own have notes.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from commsched import files
from commsched.run.job.launcher import environment_rank
from commsched.run.job.lifeline import signalled_with_parent

NOT_FOUND = 127  # status that a shell returns for a command that it cannot run


class EndNote(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a rank."""

    rank: int
    host: str
    pid: int
    status: int  # -N: killed by signal N


def main(folder: Path, command: Sequence[str]) -> int:
    """Run a rank's command; return its exit status, as a shell does."""
    signal.signal(signal.SIGINT, lambda *_: None)  # the rank gets the signal, too
    pid, status = 0, NOT_FOUND
    try:
        with subprocess.Popen(
            command, close_fds=False, preexec_fn=signalled_with_parent(signal.SIGKILL)
        ) as process:
            pid, status = process.pid, process.wait()
    except OSError as error:
        print(f"commsched: {command[0]}: cannot be run: {error.strerror}", file=sys.stderr)
    rank = environment_rank() or 0
    note = EndNote(rank=rank, host=socket.gethostname(), pid=pid, status=status)
    files.write(folder / f"{rank}.json", note)
    return status if status >= 0 else 128 - status


def notes(folder: Path) -> list[EndNote]:
    """Read the notes of all ranks that have ended on their own, in rank order."""
    found = [files.read(path, EndNote) for path in folder.glob("[0-9]*.json")]
    return sorted(found, key=lambda note: note.rank)


if __name__ == "__main__":
    os._exit(main(Path(sys.argv[1]), sys.argv[2:]))
