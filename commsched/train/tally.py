"""Scores of all ranks, added up in the order of the ranks while training goes on."""

import numpy as np
from mpi4py import MPI

from commsched.run.engine.board import Board, WaitStatus
from commsched.run.job.clock import now
from commsched.train.forward_backward import Score


class Tally:
    """Gathers one score a step without waiting; all ranks post and read the same steps in order."""

    def __init__(self, comm: MPI.Intracomm, board: Board) -> None:
        self._comm, self._board = comm.Dup(), board
        self._own: dict[int, np.ndarray] = {}  # (4,), must live as long as its request
        self._all: dict[int, tuple[np.ndarray, MPI.Request]] = {}
        self._known: dict[int, tuple[Score, bool]] = {}

    def post(self, step: int, score: Score, overflow: bool) -> None:
        """Give this rank's score of a step, and whether its gradients overflowed."""
        self._own[step] = np.array([*score, overflow], np.float64)
        everyone = np.empty((self._comm.size, 4))
        self._all[step] = everyone, self._comm.Iallgather(self._own[step], everyone)

    def total(self, step: int) -> tuple[Score, bool]:
        """The score of all ranks, and whether any overflowed; waits for the last of them."""
        if step not in self._known:
            everyone, request = self._all.pop(step)
            what = "waits for the scores of all ranks"
            status = WaitStatus(step, "score", what, now(), True)
            self._board.poll(request.Test, "compute", status)
            del self._own[step]
            loss, correct, guesses = (sum(column) for column in everyone[:, :3].T.tolist())
            self._known[step] = Score(loss, int(correct), int(guesses)), bool(everyone[:, 3].any())
            self._known.pop(step - 4, None)
        return self._known[step]

    def free(self) -> None:
        """Give the communicator back; on all ranks, with nothing under way."""
        self._comm.Free()
