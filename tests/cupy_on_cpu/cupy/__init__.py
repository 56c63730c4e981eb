"""In place of CuPy, where no GPU is: NumPy computes, copies to the host and back are late.

With this folder's parent in PYTHONPATH every command takes --device cuda. Arrays are those of
tests/support/strict_arrays.py. Kernels are NumPy's; where COMMSCHED_KERNELS is set the CUDA
sources run on this processor, which is slow. The speed of a device it does not stand for, nor
that of its memory.
"""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))

from numpy import float32  # noqa: F401

from commsched.kernels import device
from tests.support import strict_arrays
from tests.support.strict_arrays import *  # noqa: F403

if not os.environ.get("COMMSCHED_KERNELS"):
    device.on_gpu = lambda values: False

__version__ = "on the CPU"
strict_arrays.ndarray.__module__ = "cupy"
strict_arrays.ndarray.flags = property(lambda array: array.held.flags)
strict_arrays.ndarray.data = property(lambda array: cuda.Memory(array.held))
# MPI is given these arrays where COMMSCHED_BUFFERS is "direct".
strict_arrays.ndarray.__dlpack_device__ = lambda array: array.held.__dlpack_device__()
strict_arrays.ndarray.__dlpack__ = lambda array, **given: array.held.__dlpack__(**given)


def asnumpy(array):
    """A copy on the host."""
    return array.get()


from cupy import cuda  # noqa: E402


class RawModule:
    """Kernels of a library that `cuda.nvrtc` has made."""

    def __init__(self, path):
        from tests.cuda_on_cpu import cpu

        self._kernels = cpu.Kernels(Path(path))

    def get_function(self, name):
        run = self._kernels.get_function(name)
        return lambda grid, block, given: run(grid, block, tuple(map(strict_arrays.plain, given)))


def get_default_memory_pool():
    """What arrays take."""
    return cuda.Pool()
