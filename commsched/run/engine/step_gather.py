"""Numbers that all ranks gather once per step without waiting, in parallel with the exchanges."""

import numpy as np
from mpi4py import MPI

from commsched.arrays import Floats
from commsched.run.engine.board import Board, WaitStatus
from commsched.run.job.clock import now


class StepGather:
    """A gather of every rank's array, step after step.

    All ranks gather the same steps in the same order. The numbers are gathered, not reduced, so
    that every rank computes equal bits from them.
    """

    def __init__(self, comm: MPI.Intracomm, board: Board, name: str, what: str) -> None:
        self._comm, self._board = comm.Dup(), board
        self._name, self._what = name, f"waits for {what} of all ranks"
        self._asked: dict[int, tuple[MPI.Request, Floats, Floats]] = {}  # MPI uses both arrays

    def ask(self, step: int, mine: Floats) -> None:
        """Begin to gather this rank's numbers of a step, of any shape."""
        every = np.empty((self._comm.size, *mine.shape))
        self._asked[step] = self._comm.Iallgather(mine, every), mine, every

    def take(self, step: int) -> Floats:
        """Wait, under the deadline, for the numbers of a step: (ranks, ...)."""
        request, _, every = self._asked.pop(step)
        status = WaitStatus(step, self._name, self._what, now(), True)
        self._board.poll(request.Test, "compute", status)
        return every

    def take_last(self) -> tuple[int, Floats] | None:
        """Wait for the gather under way, if any."""
        step = next(iter(self._asked), None)
        return None if step is None else (step, self.take(step))

    def free(self) -> None:
        """Finish the gather under way and free the communicator; all ranks call it."""
        self.take_last()
        self._comm.Free()
