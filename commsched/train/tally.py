"""The sum of all ranks' scores in rank order, gathered while training continues."""

import numpy as np
from mpi4py import MPI

from commsched.run.engine.board import Board
from commsched.run.engine.step_gather import StepGather
from commsched.train.forward_backward import Score

REMEMBERED = 1024  # steps: more than the scores of any worker may be late


class Tally:
    """A gather of one score per step without waiting; all ranks post and read steps in order."""

    def __init__(self, comm: MPI.Intracomm, board: Board) -> None:
        self._scores = StepGather(comm, board, "score", "the scores")
        self._known: dict[int, tuple[Score, bool]] = {}
        self.free = self._scores.free

    def post(self, step: int, score: Score, overflow: bool) -> None:
        """Post this rank's score of a step, and whether its gradients overflowed."""
        self._scores.ask(step, np.array([*score, overflow], np.float64))

    def total(self, step: int) -> tuple[Score, bool]:
        """Return the score of all ranks, and whether any overflowed; wait for the last rank."""
        if step not in self._known:
            every = self._scores.take(step)
            loss, correct, guesses = (sum(column) for column in every[:, :3].T.tolist())
            self._known[step] = Score(loss, int(correct), int(guesses)), bool(every[:, 3].any())
            self._known.pop(step - REMEMBERED, None)
        return self._known[step]
