"""Ranks that wait for command lines of commsched: most of a short job is the start of its ranks."""

import atexit
import json
import os
import re
import sys
import tempfile
import time
import traceback
from pathlib import Path

from commsched.run.job.launcher import environment_rank
from tests.support.jobs import Ended, Job

IDLE = 0.01  # s between looks for the end of a command line
QUICK = 0.02  # s of counted steps in which a net is measured that a training plans for


class RankServer:
    """A job of some ranks that runs one command line after the other."""

    def __init__(self, ranks: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="commsched-ranks-")
        self._ranks, self._number, self._seen = ranks, 0, 0
        pipes = [Path(self._folder.name, str(rank)) for rank in range(ranks)]
        for pipe in pipes:
            os.mkfifo(pipe)
        # Open for reading, too: neither this nor writing waits for a rank, which may have ended.
        self._pipes = [os.open(pipe, os.O_RDWR) for pipe in pipes]
        self.job = Job(ranks, [sys.executable, "-m", __name__, self._folder.name])

    def run(self, words: tuple[str, ...], seconds: float) -> Ended:
        """Run a command; where it ends the job, the status is that of the job."""
        for pipe in self._pipes:
            os.write(pipe, f"{json.dumps(words)}\n".encode())
        mark = re.compile(rf"<ended {self._number}: (\d+)>\n")
        end = time.monotonic() + seconds
        while self.job.process.poll() is None:
            text = self.job.output[self._seen :]
            if len(found := mark.findall(text)) == 2 * self._ranks:  # on both streams
                self._number, self._seen = self._number + 1, self._seen + len(text)
                return Ended(max(map(int, found)), mark.sub("", text))
            assert time.monotonic() < end, f"still running after {seconds} s:\n{text}"
            time.sleep(IDLE)
        return Ended(self.job.process.wait(), mark.sub("", self.job.output[self._seen :]))

    def close(self) -> None:
        """End all ranks."""
        self.job.__exit__()
        for pipe in self._pipes:
            os.close(pipe)
        self._folder.cleanup()


_servers: dict[int, RankServer] = {}


@atexit.register
def _close_all() -> None:
    while _servers:
        _servers.popitem()[1].close()


def on_ranks(ranks: int, *words: str, seconds: float = 120.0) -> Ended:
    """How `commsched WORDS` ends on some ranks, which may have run other commands before."""
    if ranks in _servers and _servers[ranks].job.process.poll() is not None:
        _servers.pop(ranks).close()
    if ranks not in _servers:
        _servers[ranks] = RankServer(ranks)
    try:
        return _servers[ranks].run(words, seconds)
    except BaseException:
        _servers.pop(ranks).close()
        raise


def serve(folder: Path) -> None:
    """Run what is written to this rank's pipe, until the job is killed or the client is no more."""
    from commsched.cli.main import main
    from commsched.train import load

    load.SECONDS = QUICK
    with (folder / str(environment_rank())).open() as commands:
        for number, words in enumerate(commands):
            try:
                status = main(json.loads(words))
            except SystemExit as error:
                status = error.code if isinstance(error.code, int) else 1
            except BaseException:
                traceback.print_exc()
                status = 1
            for stream in (sys.stdout, sys.stderr):
                stream.write(f"<ended {number}: {status}>\n")
                stream.flush()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
