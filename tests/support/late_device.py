"""A device that copies late, in memory of its own: NumPy computes, MPI never sees its arrays.

A copy happens when it is asked for the third time whether it is over, after all that were begun
before it. Until then its target holds rubbish; what is sent, given back or overwritten too early
shows.
"""

from collections import deque

import numpy as np

from commsched.run.job.clock import now
from tests.support import strict_arrays

LOOKS = 3
RUBBISH = 0xAA


def plain(array):
    """What NumPy holds of an array."""
    return array.held if isinstance(array, strict_arrays.ndarray) else array


class Copy:
    """A copy that is begun."""

    def __init__(self, line, source, to):
        self._line, self._source, self._to = line, plain(source), plain(to)
        self._looks = 0
        self._to[:] = RUBBISH
        line.append(self)

    def done(self):
        self._looks += 1
        if self._looks >= LOOKS and self in self._line:
            while self._line.popleft().make() is not self:
                continue
        return self._looks >= LOOKS

    def make(self):
        self._to[:] = self._source
        return self

    def wait(self):
        while not self.done():
            continue


class Mark:
    """A moment that is reached late."""

    def __init__(self):
        self._looks, self._moment = 0, now()

    def done(self):
        self._looks += 1
        return self._looks >= LOOKS

    def wait(self):
        self._looks = LOOKS

    def when(self):
        return self._moment


class Late:
    """Arrays of `module`, which is NumPy or the strict one."""

    name = "late"

    def __init__(self, module=strict_arrays, card="0", lack=""):
        self.module, self.card, self._lack = module, card, lack
        self._lines = {"out": deque(), "in": deque()}
        self.begun = 0  # copies

    def lacks(self):
        return self._lack

    def use(self, stream):
        """One thread gives its work at once."""

    def mark(self):
        return Mark()

    def about(self):
        return "late", 2.0**34

    def host(self, nbytes):
        return np.full(nbytes, RUBBISH, np.uint8)

    def copy_out(self, source, to):
        assert isinstance(to, np.ndarray)
        self.begun += 1
        return Copy(self._lines["out"], source, to)

    def copy_in(self, source, to):
        assert isinstance(source, np.ndarray)
        self.begun += 1
        return Copy(self._lines["in"], source, to)
