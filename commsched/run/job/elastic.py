"""Supervision of a job: if a rank is lost, all ranks start anew from their last checkpoint."""

import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from commsched import files
from commsched.errors import CommschedError
from commsched.run.job.deadlines import deadlines
from commsched.run.job.ending import say
from commsched.run.job.guard import EndNote, notes
from commsched.run.job.start import end, started

FOLDER = "COMMSCHED_ELASTIC"  # variable of supervised ranks: the folder of their checkpoints
MANIFEST = "manifest.json"
NOTES = ".ended"  # folder of end notes in that folder
PAUSE = 1.0  # s before a restart that follows another without progress


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticJob:
    """The command of a job's ranks, and the limit of restarts."""

    ranks: int
    folder: Path  # of the checkpoints, visible on all hosts
    command: tuple[str, ...]
    resume: tuple[str, ...] = ()  # further words if there is a checkpoint
    restarts: int = 3  # most consecutive restarts without a new checkpoint
    options: tuple[str, ...] = ()  # of mpiexec


class Kept(msgspec.Struct):
    """The part of a checkpoint's manifest that tells the step at which a job continues."""

    step: int


def kept_step(folder: Path) -> int | None:
    """Return the step at which a job continues from its last checkpoint; None without one."""
    found = []
    for path in (folder / MANIFEST, *folder.glob(f"step*/{MANIFEST}")):
        with suppress(CommschedError):  # missing or torn: the previous one counts
            found.append(files.read(path, Kept).step)
    return max(found, default=None)


def supervise(job: ElasticJob) -> int:
    """Run a job to its end, with restarts as needed; return its status.

    If all ranks end on their own, there is no restart: they have finished, or rejected their
    options.
    """
    _check(job)
    before, in_vain = kept_step(job.folder), 0
    again = False
    while True:
        status, ended = _attempt(job, again)
        refused = len(ended) == job.ranks and all(note.status >= 0 for note in ended)
        if status == 0 or (refused and not again):
            return status
        reached = kept_step(job.folder)
        in_vain = in_vain + 1 if reached == before else 1
        before, again = reached, True
        why = _reason(status, ended)
        if in_vain > job.restarts:
            raise CommschedError(f"{why}; no new checkpoint after {job.restarts} restarts: gave up")
        say(f"{why}; {_next(job.ranks, reached)}")
        if in_vain > 1:
            time.sleep(PAUSE)


def _next(ranks: int, step: int | None) -> str:
    """Say where the job continues."""
    who = "1 rank goes" if ranks == 1 else f"{ranks} ranks go"
    if step is None:
        return f"{who} on from the start: there is no checkpoint yet"
    return f"{who} on from step {step}, the last checkpoint"


def _check(job: ElasticJob) -> None:
    if job.ranks < 1:
        raise CommschedError(f"the number of ranks must be at least 1, got {job.ranks}")
    if job.restarts < 0:
        raise CommschedError(f"--restarts must be at least 0, got {job.restarts}")
    files.make_folder(job.folder)


def _attempt(job: ElasticJob, again: bool) -> tuple[int, list[EndNote]]:
    """Run the ranks once; return the launcher's status, and which ranks ended on their own."""
    folder = job.folder / NOTES
    shutil.rmtree(folder, ignore_errors=True)
    files.make_folder(folder)
    guard = (sys.executable, "-m", "commsched.run.job.guard", str(folder))
    words = job.resume if again and kept_step(job.folder) is not None else ()
    variables = {FOLDER: str(job.folder)}
    command = (*guard, *job.command, *words)
    process = started(job.ranks, command, job.options, variables=variables)
    try:
        _wait(process, folder)
        return process.returncode, notes(folder)
    finally:
        end(process)
        shutil.rmtree(folder, ignore_errors=True)


def _wait(process: "subprocess.Popen[str]", folder: Path) -> None:
    """Wait for the end of a job; end it if the launcher continues without a failed rank.

    A launcher does not notice a rank that fails before MPI_Init.
    """
    patience = deadlines().meeting
    while patience > 0:
        with suppress(subprocess.TimeoutExpired):
            process.wait(deadlines().look)
            return
        if any(note.status for note in notes(folder)):
            patience -= deadlines().look
    end(process)


def _reason(status: int, ended: list[EndNote]) -> str:
    """Say which rank the job lost, or how the job ended."""
    killed = [note for note in ended if note.status < 0]
    for note in killed or [note for note in ended if note.status]:
        how = f"ended the job with status {note.status}"
        if note.status < 0:
            how = f"was killed by {signal.Signals(-note.status).name}"
        return f"rank {note.rank} (process {note.pid} on {note.host}) {how}"
    return f"the job ended with status {status}"
