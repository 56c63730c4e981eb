"""A prepared exchange driven by compiled code: equal moves and bits, no lock of the interpreter.

Importing this module needs the compiled extra (Numba).
"""

import ctypes
import time
from typing import Any

import numpy as np
from mpi4py import MPI

from commsched.arrays import Array, Floats
from commsched.exchange.memory import AHEAD
from commsched.kernels import fast_exchange as fast
from commsched.run.engine.prepared_exchange import Coming, Leaving, Prepared
from commsched.run.engine.wait_for_messages import NEVER
from commsched.run.wire.path import PendingMove, Unlocked

AT_ONCE = np.zeros(5)  # a pace without waiting


def _functions() -> Any:
    """Return the addresses of the functions that `drive` calls, and the clock of `job.clock`."""
    mpi, system = ctypes.CDLL(MPI.__file__), ctypes.CDLL(None)
    found = (
        mpi.MPI_Start,
        mpi.MPI_Test,
        system.sched_yield,
        system.nanosleep,
        system.clock_gettime,
    )
    addresses = [ctypes.cast(each, ctypes.c_void_p).value for each in found]
    return np.array([*addresses, time.CLOCK_MONOTONIC], np.int64)


CALLS = _functions()


def load() -> None:
    """Load the compiled driver by driving an exchange without moves."""
    sends, receives, at = (np.zeros(shape, np.int64) for shape in ((0, 2), (0, 7), 7))
    fast.drive(CALLS, sends, receives, at, AHEAD, AT_ONCE, 0.0, NEVER)


class CompiledExchange(Prepared, Unlocked):
    """The tables of a prepared exchange as numbers, for `kernels.fast_exchange.drive`.

    Python encodes packets, and merges packets whose merge is not a plain addition.
    """

    def _compile(self) -> None:
        self._out = np.array([_send(each) for each in self._sends], np.int64).reshape(-1, 2)
        self._fresh = np.flatnonzero(self._out[:, fast.REQUEST] == 0)  # encoded in every step
        self._all = sum(each.nbytes for each in self._sends)
        rows = [self._receive(each) for each in self._receives]
        self._into = np.array(rows, np.int64).reshape(-1, 7)
        self._at = np.zeros(7, np.int64)

    def _receive(self, coming: Coming) -> list[int]:
        move, packet, in_place, request, _ = coming
        row = [MPI._addressof(request), in_place, move.merged, move.sent, 0, 0, 0]
        if not in_place:
            added = self.held.plain_sum(move.first, move.stop, move.add, packet)
            row[fast.COUNT] = -1
            if added is not None:
                came, into = added
                row[fast.INTO :] = into.ctypes.data, came.ctypes.data, len(came)
        return row

    def start(self) -> None:
        self._at.fill(0)
        self._ended = False
        self.sent, self.moves, self.coded = self._all, 0, 0.0
        if len(self._fresh):
            self._out[self._fresh, fast.REQUEST] = 0
            self._under_way = []

    def progress(self) -> bool:
        return self._ended or self._drive(AT_ONCE, 0.0, NEVER)

    def wait(self, pace: Floats, waited: float, changed: Array) -> bool:
        return self._drive(pace, waited, changed)

    def _drive(self, pace: Floats, waited: float, changed: Array) -> bool:
        tables = CALLS, self._out, self._into, self._at
        while True:
            code = fast.drive(*tables, AHEAD, pace, waited, changed)
            if code == fast.OVER:
                self.coded += 1e-9 * float(self._at[fast.ADDED])
                self._ended = True
            elif code == fast.MERGE:
                self._read(self._receives[self._at[fast.SUMMED]])
                self._at[fast.SUMMED] += 1
                continue
            elif code == fast.TAKE:
                number = self._at[fast.ISSUED]
                request = self._take(self._sends[number].move)
                self._out[number, fast.REQUEST] = MPI._addressof(request)
                self._at[fast.ISSUED] += 1
                continue
            elif code == fast.FAILED:
                raise MPI.Exception(int(self._at[fast.ERROR]))
            self.moves = int(self._at[fast.MOVES])
            return self._ended

    def waiting(self) -> list[PendingMove]:
        self._issued, self._left, _, self._merged = self._at[: fast.MOVES].tolist()
        return super().waiting()


def _send(leaving: Leaving) -> list[int]:
    request = leaving.request
    return [0 if request is None else MPI._addressof(request), leaving.move.merged]
