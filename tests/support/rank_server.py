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

from tests.support.jobs import Ended, Job

IDLE = 0.01  # s between looks for another command line, or its end


class RankServer:
    """A job of some ranks that runs one command line after the other."""

    def __init__(self, ranks: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="commsched-ranks-")
        self._ranks, self._number, self._seen = ranks, 0, 0
        self.job = Job(ranks, [sys.executable, "-m", __name__, self._folder.name, str(os.getpid())])

    def run(self, words: tuple[str, ...], seconds: float) -> Ended:
        """Run a command; where it ends the job, the status is that of the job."""
        path = Path(self._folder.name, f"{self._number}.json")
        path.with_suffix(".tmp").write_text(json.dumps(words))
        path.with_suffix(".tmp").rename(path)
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


def serve(folder: Path, client: int) -> None:
    """Run what is written to the folder, until the job is killed or the client is no more."""
    from commsched.cli.main import main

    number = 0
    while True:
        path = folder / f"{number}.json"
        while not path.exists():
            if not Path("/proc", str(client)).exists():
                return
            time.sleep(IDLE)
        try:
            status = main(json.loads(path.read_text()))
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
            status = 1
        for stream in (sys.stdout, sys.stderr):
            stream.write(f"<ended {number}: {status}>\n")
            stream.flush()
        number += 1


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
