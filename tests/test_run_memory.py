"""A rank's memory: what was freed is used again, and what is measured was touched before."""

import platform
import resource
import subprocess
import sys

import pytest

KEPT = """
import resource, threading
{keep}
import numpy as np

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def exchange():
    for _ in range(5):
        arrays = [np.ones({nbytes} // 8) for _ in range(4)]
        del arrays

def threads():
    for _ in range(3):
        thread = threading.Thread(target=exchange)
        thread.start()
        thread.join()

threads()
before = faults()
threads()
print(faults() - before)
"""
PAGE = resource.getpagesize()
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")


def _faults(keep: str, nbytes: int) -> int:
    code = KEPT.format(keep=keep, nbytes=nbytes)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return int(done.stdout)


@pytest.mark.by_day(1)
@glibc
@pytest.mark.parametrize("nbytes", [2**18, 2**20, 3 * 2**20])
def test_freed_memory_is_used_again_by_all_threads(nbytes: int) -> None:
    keep = "from commsched.run.job.process import prepare_process\nprepare_process()"
    written = 3 * 5 * 4 * nbytes / PAGE  # pages
    kept, given_back = _faults(keep, nbytes), _faults("", nbytes)
    assert kept < 0.02 * written
    assert kept < given_back  # glibc alone


def test_all_of_an_arena_was_touched_before_it_is_measured() -> None:
    pytest.importorskip("mpi4py")
    from commsched.run.engine.probe import Arena

    arena = Arena(2**25)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arena.values[:] = 1.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 0.02 * 2**25 / PAGE
