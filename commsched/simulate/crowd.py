"""What a rank's own work does to its exchanges: they share its cores, or wait for its polls."""

import numpy as np
import numpy.typing as npt

from commsched.machine import Machine

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
THREADS = 2  # of a rank that are busy while it codes during an exchange


class Crowd:
    """The coding of one role's ranks, and how much longer it makes exchanges inside a node.

    An exchange in shared memory is copies and additions, all processor time. On a node of n ranks
    and c cores, a share of min(1, max(0, 2 - c / n)) of the coding that a rank does meanwhile
    comes on top: nothing where each rank has two cores, all of it where each has one or less.
    Source: conservation of processor time. Holds for the rates of a machine file that was measured
    with all ranks at work.
    """

    def __init__(self, machine: Machine, ranks: Ints) -> None:
        node = np.array(machine.node_of_rank)
        share = np.zeros(len(node))
        if machine.cores:
            share = np.clip(THREADS - machine.cores / np.bincount(node), 0.0, 1.0)[node]
        self._share = share[ranks]
        self._idle = not self._share.any()
        self._coding: list[tuple[Floats, Floats]] = []

    def coded(self, start: Floats, end: Floats) -> None:
        """Note that the ranks encode or decode from `start` to `end`, (ranks,) s."""
        if not self._idle:
            self._coding.append((start, end))

    def stretched(self, start: Floats, end: Floats) -> Floats:
        """When an exchange that would last from `start` to `end` ends in truth: (ranks,) s."""
        if self._idle:
            return end
        self._coding = [span for span in self._coding if (span[1] > start).any()]
        taken = np.zeros(len(end))
        for first, last in self._coding:
            taken += np.maximum(np.minimum(last, end) - np.maximum(first, start), 0.0)
        return end + self._share * taken


def under_compute(start: Floats, end: Floats, busy: Floats, overlap: float) -> Floats:
    """When an exchange ends of which only a share moves on while its rank computes: (ranks,) s.

    start, end: as if nothing computed; busy: until when the rank computes, from before `start` on.
        end' = start + T / f                 if T <= f c,  c = busy - start, T = end - start
        end' = busy + T - f c                otherwise
    f = `overlap`, in [0, 1]; f = 0: all waits until the compute is over.
    """
    if overlap == 1.0:
        return end
    covered, alone = np.maximum(busy - start, 0.0), end - start
    within = alone <= overlap * covered
    slowed = start + alone / overlap if overlap else end
    return np.where(within, slowed, end + (1.0 - overlap) * covered)
