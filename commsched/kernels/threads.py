"""Limit matrix products to one core if every rank has one."""

import os
import sys

VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "BLIS_NUM_THREADS")


def one_thread() -> None:
    """Let a matrix product take one core, unless the user's environment says how many.

    Before NumPy is imported, which reads it then. Ranks that share a node slow each other down many
    times over if each takes all cores; and sums depend on how many take part.
    """
    if "numpy" not in sys.modules:
        for name in VARIABLES:
            os.environ.setdefault(name, "1")
