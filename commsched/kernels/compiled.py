"""The kernels of the compiled extra, loaded if it is installed and a run is long enough to pay."""

import os
from functools import cache
from typing import Any

import numpy as np

from commsched.arrays import Array
from commsched.errors import CommschedError, install

# Shortest run for the compiled kernels, because loading them takes 0.3 s once per process.
LEAST = 1 << 16
SWITCH = "COMMSCHED_COMPILED"
MODES = ("auto", "always", "never")


def compiled(values: Array) -> Any:
    """Return the compiled kernels for (n,) values, or None if the array's own module is used.

    Both give equal bits. The environment's COMMSCHED_COMPILED=never disables the extra;
    =always requires it, and uses it for short runs too.
    """
    return _of(values, len(values))


def compiled_list(values: Array, numel: int) -> Any:
    """Return the compiled kernels for a list of (m,) values among `numel` elements, or None.

    An index of such a list must fit 32 bits.
    """
    return _of(values, numel) if numel < 2**31 else None


def _of(values: Array, length: int) -> Any:
    if not isinstance(values, np.ndarray):
        return None
    chosen = mode()
    if chosen == "never" or (chosen == "auto" and length < LEAST):
        return None
    return load(needed=chosen == "always")


@cache
def mode() -> str:
    """Return the environment's setting of the compiled extra."""
    chosen = os.environ.get(SWITCH, "auto")
    if chosen not in MODES:
        raise CommschedError(f"{SWITCH} must be one of {', '.join(MODES)}; got {chosen!r}")
    return chosen


@cache
def load(*, needed: bool = False) -> Any:
    """Return the module of compiled kernels; None if Numba is not installed."""
    try:
        from commsched.kernels import fast
    except ImportError as error:
        if needed:
            raise CommschedError(
                f"the compiled kernels need Numba ({error}): {install('fast')}"
            ) from error
        return None
    return fast
