"""Memory that is freed stays with the process, unless its user decides."""

import os
import subprocess
import sys

import pytest

COUNT = """
import resource, sys
import numpy as np
from commsched.run.job.process import OWN, keep_freed_memory

asked = keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def use():
    parts = [np.empty(2**21, np.uint8) for _ in range(8)]
    for part in parts:
        part[:] = 1
use()
before = faults()
for _ in range(10):
    use()
print(asked, faults() - before)
"""
PAGES = 10 * 8 * 2**21 // os.sysconf("SC_PAGE_SIZE")  # that ten uses touch


def counted(**environment: str) -> tuple[bool, int]:
    words = [sys.executable, "-c", COUNT]
    said = subprocess.run(
        words, env=os.environ | environment, capture_output=True, text=True, check=True
    )
    asked, faults = said.stdout.split()
    return asked == "True", int(faults)


@pytest.mark.skipif("glibc" not in os.confstr("CS_GNU_LIBC_VERSION"), reason="glibc alone is asked")
def test_pages_are_made_once():
    asked, faults = counted()
    assert asked
    assert faults < PAGES / 100


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES"])
def test_a_users_own_settings_stay(name):
    asked, _ = counted(**{name: "131072"})
    assert not asked
