"""The passing of values between stages during scoring: by MPI, or inside one process."""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from mpi4py import MPI

from commsched.arrays import Array
from commsched.run.wire.host import pieces


class Neighbours(Protocol):
    """The ranks with which a rank exchanges values."""

    def give(self, values: Array, to: int) -> None:
        """Send contiguous values."""

    def take(self, values: Array, source: int) -> None:
        """Fill contiguous values with the values that a rank has sent."""


def around(
    others: Neighbours, ranks: Sequence[int], rank: int, own: Array, sizes: Sequence[int]
) -> Iterator[tuple[int, Array]]:
    """Yield each rank and its values, passed around a circle; `sizes` are the ranks' elements."""
    place, values = ranks.index(rank), own
    to, source = ranks[(place + 1) % len(ranks)], ranks[place - 1]
    yield rank, own
    for k in range(1, len(ranks)):
        owner = (place - k) % len(ranks)
        came = np.empty(sizes[owner], own.dtype)
        if place % 2 == 0:  # if all ranks of the circle gave first, they would wait for ever
            others.give(values, to)
            others.take(came, source)
        else:
            others.take(came, source)
            others.give(values, to)
        values = came
        yield ranks[owner], values


class MpiNeighbours:
    """Other ranks of a job; `give` may wait until the other rank takes."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm

    def give(self, values: Array, to: int) -> None:
        for piece in pieces(values.reshape(-1)):
            self._comm.Send([piece, MPI.BYTE], to)

    def take(self, values: Array, source: int) -> None:
        for piece in pieces(values.reshape(-1)):
            self._comm.Recv([piece, MPI.BYTE], source)


class InProcessNeighbours:
    """Neighbours in one process: `give` must come before `take`."""

    def __init__(self, rank: int, kept: defaultdict[tuple[int, int], deque[Array]]) -> None:
        self._rank, self._kept = rank, kept

    @classmethod
    def all(cls, ranks: int) -> Sequence["InProcessNeighbours"]:
        """Make the neighbours of all ranks."""
        kept: defaultdict[tuple[int, int], deque[Array]] = defaultdict(deque)
        return [cls(rank, kept) for rank in range(ranks)]

    def give(self, values: Array, to: int) -> None:
        self._kept[self._rank, to].append(values.copy())

    def take(self, values: Array, source: int) -> None:
        np.copyto(values, self._kept[source, self._rank].popleft())
