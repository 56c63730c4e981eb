"""Sums among ranks of this machine, by files; where COMMSCHED_CARDS is set: each has a GPU then.

Ranks add in order and wait for each other at once, not on a stream.
"""

import ctypes
import os
import tempfile
import time
from pathlib import Path

import numpy as np

NCCL_FLOAT32, NCCL_SUM = 7, 0
LIMIT = 60.0  # s
available = "COMMSCHED_CARDS" in os.environ


def get_unique_id():
    return tempfile.mkdtemp(prefix="nccl-", dir=os.environ["COMMSCHED_CARDS"]).encode()


class NcclCommunicator:
    """Ranks that know the same folder."""

    def __init__(self, size, name, rank):
        assert isinstance(name, bytes)
        assert 0 <= rank < size
        self._folder, self._size, self._rank, self._sums = Path(name.decode()), size, rank, 0

    def allReduce(self, source, to, count, kind, how, stream):
        assert (kind, how) == (NCCL_FLOAT32, NCCL_SUM)
        assert stream
        self._sums += 1
        mine = np.ctypeslib.as_array((ctypes.c_float * count).from_address(source))
        hidden = self._folder / f".{self._rank}"
        hidden.write_bytes(mine.tobytes())
        hidden.rename(self._folder / f"{self._sums}-{self._rank}")
        parts = [self._read(self._folder / f"{self._sums}-{rank}") for rank in range(self._size)]
        total = np.sum(parts, axis=0, dtype=np.float32)
        ctypes.memmove(to, total.ctypes.data, total.nbytes)

    @staticmethod
    def _read(path):
        end = time.monotonic() + LIMIT
        while not path.exists():
            assert time.monotonic() < end, f"{path} never came"
            time.sleep(0.001)
        return np.frombuffer(path.read_bytes(), np.float32)
