"""Limit matrix products to one core if every rank has one."""

import os
import sys

VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "BLIS_NUM_THREADS")


def one_thread() -> None:
    """Let matrix products use one core, unless the user's environment sets a number.

    Call it before NumPy is imported, which reads the variables then. Ranks on a node would slow
    each other down if each took all cores; and sums depend on the number of cores.
    """
    if "numpy" not in sys.modules:
        for name in VARIABLES:
            os.environ.setdefault(name, "1")


def threads() -> int:
    """Return the cores that matrix products use, as the environment says; 0: not stated."""
    found = next((os.environ[name] for name in VARIABLES if name in os.environ), "")
    return int(found) if found.isascii() and found.isdecimal() else 0
