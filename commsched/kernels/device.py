"""The GPUs of this process, and the fused kernels for arrays on a GPU."""

from types import ModuleType

import numpy as np
import numpy.typing as npt

from commsched.arrays import Array
from commsched.errors import CommschedError, install


def device(values: Array) -> ModuleType | None:
    """Return the CUDA kernels for a GPU's array, or None if the array's own module is used.

    Both give equal bits; payloads of computed NaNs may differ, but not in packets.
    """
    if not on_gpu(values):
        return None
    from commsched.kernels import cuda

    return cuda


def on_gpu(values: Array) -> bool:
    """Tell whether an array is CuPy's."""
    return type(values).__module__.partition(".")[0] == "cupy"


def numbers(part: Array, dtype: npt.DTypeLike) -> Array:
    """Read bytes of a packet as numbers: a view; on a device an aligned copy."""
    return (
        part.view(dtype)
        if isinstance(part, np.ndarray) and not on_gpu(part)
        else part.copy().view(dtype)
    )


def gpus() -> int:
    """Count the GPUs that this process sees; without any, raise an error that says why."""
    try:
        import cupy
    except ImportError as error:
        raise CommschedError(f"--device cuda needs CuPy ({error}): {install('cuda')}") from None
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise CommschedError(f"--device cuda: CuPy finds no GPU to use here: {error}") from None
    if not count:
        raise CommschedError("--device cuda: CuPy finds no GPU to use here")
    return count
