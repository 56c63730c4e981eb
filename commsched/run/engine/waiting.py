"""The time that this rank waits for others, its reports to judging ranks, and their verdicts."""

from collections.abc import Mapping

import msgspec
import numpy as np
from mpi4py import MPI

from commsched.run.engine.board import WaitStatus
from commsched.run.engine.slow_ranks import Report, SlowRanks
from commsched.run.job import agree
from commsched.run.job.deadlines import deadlines
from commsched.run.job.ending import say

REPORT = 2  # tag on the control communicator
REPORTS = 10  # in a window
SPARSE = 5e-3  # s between looks: an operation costs nothing
UNSENT = 32  # most unreceived reports under way
CODING = ("encode", "decode")  # streams of this rank: waiting for them is not waiting for others


class Waiting:
    """The waiting of this rank's computation for others; all methods are called in one thread.

    Rank 0 judges all other ranks, and rank 1 judges rank 0, which may be the slow one.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm, self._limits = comm, deadlines()
        ranks = comm.size
        judged = {0: range(1, ranks), 1: range(1)}.get(comm.rank, range(0))
        self._judges = [rank for rank in (0, 1) if rank < ranks and rank != comm.rank]
        self._slow = SlowRanks(ranks, judged, self._limits.slow) if judged else None
        self._last = self._reported = 0.0
        self._waited = self._seen = 0.0
        self._step, self._name = 0, ""
        self._sent: list[tuple[MPI.Request, np.ndarray]] = []  # MPI reads the arrays
        self._counts = np.zeros((2, ranks))  # reports to a rank, reports from a rank
        self.told: list[str] = []

    def look(self, when: float, status: Mapping[str, WaitStatus], exchange: str | None) -> None:
        """Add the time since the last call if the computation waited; `exchange` is under way."""
        since, self._last = self._last, when
        if not since or when - since > self._limits.grace:
            return  # at the start, or this process was stopped
        self._seen += when - since
        own = status.get("compute")
        if own is None:
            return
        self._step = own.step if own.step >= 0 else self._step
        coding = [at for stream in CODING if (at := status.get(stream)) is not None]
        if own.waits and not any(at.what == "runs" for at in coding):
            self._waited += max(0.0, when - max(since, own.since))  # a planned wait begins later
            self._name = exchange or own.name

    def report(self, when: float) -> None:
        """Send a report to the judging ranks if one is due; judge, and print which rank is slow."""
        if self._slow is not None:
            self._hear(when)
        if when - self._reported < self._limits.slow / REPORTS:
            return
        self._reported = when
        own = Report(self._waited, self._seen, self._step, self._name)
        self._sent = [(request, text) for request, text in self._sent if not request.Test()]
        text = np.frombuffer(msgspec.json.encode(own), np.uint8)
        for judge in self._judges if len(self._sent) < UNSENT else ():
            self._sent.append((self._comm.Isend(text, judge, REPORT), text))
            self._counts[0, judge] += 1
        if self._slow is not None:
            self._slow.take(self._comm.rank, own, when)
            for found in self._slow.judge(when):
                self.told.append(str(found))
                say(str(found))

    def _hear(self, when: float) -> None:
        status = MPI.Status()
        while self._comm.Iprobe(MPI.ANY_SOURCE, REPORT, status):
            self._receive(status.Get_source(), when)

    def _receive(self, source: int, when: float) -> None:
        status = MPI.Status()
        self._comm.Probe(source, REPORT, status)
        text = np.empty(status.Get_count(MPI.BYTE), np.uint8)
        self._comm.Recv(text, source, REPORT)
        self._counts[1, source] += 1
        if self._slow is not None:
            self._slow.take(source, msgspec.json.decode(text.tobytes(), type=Report), when)

    def close(self) -> None:
        """Take all reports under way; all ranks call it after the last `look`."""
        everyone = agree.gather_array(self._counts[0].copy(), self._comm)
        for source, count in enumerate(everyone[:, self._comm.rank]):
            while self._counts[1, source] < count:
                self._receive(source, self._last)
        for request, _ in self._sent:
            request.Wait()
