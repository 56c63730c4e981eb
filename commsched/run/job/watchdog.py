"""Deadlines for blocking calls: a rank without progress names its stage, and ends the job."""

import atexit
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from commsched.run.job.clock import now
from commsched.run.job.deadlines import deadlines
from commsched.run.job.ending import abort, say
from commsched.units import seconds

PAUSE = 2e-3  # s between looks at the exit
SHOWN = 8  # most silent ranks that are named
LATE = 2.0  # times the interval of polls: a later poll counts as this much
# The first number of a message; END is followed by the ranks that are silent.
ASK, STUCK, GETS_ON, END = range(4)


class WatchedStage(NamedTuple):
    """A rank's stage, and the s that it may last without progress; a new object is progress."""

    name: str
    limit: float


def _control(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Make the watchdogs' communicator of `comm`; all ranks call it when the first one starts."""
    found = comm.Get_attr(KEY)
    if found is None:
        comm.Set_attr(KEY, found := comm.Dup())
    assert isinstance(found, MPI.Intracomm)
    return found


# MPI frees it together with the communicator to which it is attached.
KEY = MPI.Comm.Create_keyval(delete_fn=lambda _comm, _key, control: control.Free())


class Watchdog:
    """A thread that asks all other ranks once this rank has been in one stage for too long.

    If a rank does not answer, because it is stopped or gone, or if no rank progresses, every rank
    names its stage and the job ends. The thread needs THREAD_MULTIPLE, because the caller may be
    blocked inside MPI.
    """

    def __init__(
        self, comm: MPI.Intracomm, what: str, timeout: float, option: str, first: str
    ) -> None:
        self._comm, self._what, self._option = comm, what, option
        self._rank, self._size = comm.rank, comm.size
        self._timeout, self._deadlines = timeout, deadlines()
        self._stage = WatchedStage(first, max(timeout, self._deadlines.meeting))
        self._control: MPI.Intracomm | None = None
        self._spent = 0.0  # s in the stage without progress, while this process ran
        self._asked: float | None = None  # `_spent` at the question, until all answers arrive
        self._answers: dict[int, int] = {}
        self._patience = 0.0  # s of `_spent` before the next question
        self._sent: list[MPI.Request] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch, unless there is only one rank."""
        if self._size > 1:
            self._thread.start()
            self._control = _control(self._comm)  # may wait for a rank that never arrives
            self.beat()

    def stop(self) -> None:
        """End the watch; do not return while the watchdog ends the job."""
        self._over.set()
        if self._size > 1:
            self._thread.join()

    def stage(self, name: str) -> None:
        """Record the stage that begins now, such as "drawing gradients"."""
        self._stage = WatchedStage(name, self._timeout)

    def beat(self) -> None:
        """Record progress in the stage."""
        self._stage = WatchedStage(*self._stage)

    def _watch(self) -> None:
        stage, looked = self._stage, now()
        while not self._over.wait(self._deadlines.look):
            before, looked = looked, now()
            # While this process was stopped, others may have been unable to answer.
            self._spent += min(looked - before, LATE * self._deadlines.look)
            if stage is not self._stage:
                stage, self._spent, self._patience, self._asked = self._stage, 0.0, 0.0, None
            control = self._control
            if control is not None:
                silent = self._hear(stage, control)
                if silent is None:
                    silent = self._judge(stage, control)
                if silent is not None:
                    self._end(stage, silent)
            elif self._stuck(stage):
                self._end(stage, [])  # some ranks never arrived

    def _stuck(self, stage: WatchedStage) -> bool:
        return self._spent > stage.limit > 0

    def _hear(self, stage: WatchedStage, control: MPI.Intracomm) -> list[int] | None:
        """Answer other ranks; return the silent ranks once another rank ends the job."""
        status = MPI.Status()
        with suppress(MPI.Exception):  # a connection broke: its rank will count as silent
            while message := control.Improbe(MPI.ANY_SOURCE, 0, status):
                numbers = np.empty(status.Get_count(MPI.INT64_T), np.int64)
                message.Recv(numbers)
                kind, source = int(numbers[0]), status.Get_source()
                if kind == END:
                    return [int(rank) for rank in numbers[1:]]
                if kind == ASK:
                    self._send(control, source, STUCK if self._stuck(stage) else GETS_ON)
                else:
                    self._answers[source] = kind
        return None

    def _judge(self, stage: WatchedStage, control: MPI.Intracomm) -> list[int] | None:
        """If this rank is stuck, ask the others; return the silent ranks once the job must end."""
        if not self._stuck(stage):
            return None
        others = set(range(self._size)) - {self._rank}
        if self._asked is None:
            if self._spent > self._patience:
                self._asked, self._answers = self._spent, {}
                for peer in sorted(others):
                    self._send(control, peer, ASK)
            return None
        silent = sorted(others - self._answers.keys())
        if silent and self._spent - self._asked < self._deadlines.grace:
            return None
        if silent or GETS_ON not in self._answers.values():
            for peer in sorted(others):
                self._send(control, peer, END, *silent)
            return silent
        self._asked, self._patience = None, self._spent + stage.limit / 2
        return None

    def _send(self, control: MPI.Intracomm, peer: int, *numbers: int) -> None:
        """Send without waiting; the requests are kept because they hold the message."""
        self._sent = [request for request in self._sent if not request.Test()]
        with suppress(MPI.Exception):  # its connection is broken
            self._sent.append(control.Isend(np.array(numbers, np.int64), peer, 0))

    def _end(self, stage: WatchedStage, silent: list[int]) -> None:
        """Print this rank's stage, and on the first rank the silent ranks; then end the job.

        After the meeting ranks inform each other; before, each prints at its own deadline.
        """
        what = f"for {seconds(self._spent)}" if self._spent else "gets on"
        if self._stuck(stage):
            what = f"no progress for {seconds(stage.limit)} ({self._option})"
        say(f"rank {self._rank}: {self._what}: {stage.name}: {what}")
        if self._control is None:
            time.sleep(self._deadlines.meeting)  # ranks that came later print later
        elif self._rank == min(set(range(self._size)) - set(silent)):
            time.sleep(4 * self._deadlines.look)  # for the others to be informed
            if silent:
                say(unanswering(silent))
            time.sleep(self._deadlines.look)  # for the launcher to read what the ranks said
        else:
            time.sleep(2 * self._deadlines.grace)  # the first ends the job
        abort(self._comm)


def unanswering(ranks: list[int]) -> str:
    """Name the ranks that do not answer."""
    shown = [str(rank) for rank in ranks[:SHOWN]]
    if len(ranks) == 1:
        return f"rank {shown[0]} does not answer"
    more = f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else ""
    return f"ranks {', '.join(shown)}{more} do not answer"


@contextmanager
def watchdog(
    comm: MPI.Intracomm,
    what: str,
    timeout: float,
    option: str = "--timeout",
    first: str = "meeting all ranks",
) -> Iterator[Watchdog]:
    """End the job if a stage inside the block takes more than `timeout` s and no rank progresses.

    All ranks of `comm` run such a block. `what` is their command, and `option` sets the timeout.
    Ranks meet in the stage `first`, which has at least the deadline of a meeting.
    """
    dog = Watchdog(comm, what, timeout, option, first)
    dog.start()
    try:
        yield dog
    finally:
        dog.stop()


def end_together(what: str, timeout: float) -> None:
    """Let the ranks meet at the exit of this process, within `timeout` s.

    Otherwise MPI_Finalize would wait for ever for a rank that was stopped during its last work. It
    holds the interpreter, so that no thread could end the wait.
    """
    comm, limit = MPI.COMM_WORLD, max(timeout, deadlines().meeting)

    def end() -> None:
        if MPI.Is_finalized():
            return
        request, until = comm.Ibarrier(), now() + limit
        while not request.Test():
            if now() > until:
                stuck = f"no progress for {seconds(limit)} (--timeout)"
                say(f"rank {comm.rank}: {what}: waiting for all ranks to exit: {stuck}")
                time.sleep(deadlines().look)  # for the launcher to read it
                abort(comm)
            time.sleep(PAUSE)

    atexit.register(end)
