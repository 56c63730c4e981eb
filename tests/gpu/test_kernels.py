"""CUDA kernels compute NumPy's bits on the GPU of this machine."""

from pathlib import Path

import pytest

from tests.cuda_exam import *  # noqa: F403, the same tests

if not Path("/dev/nvidiactl").exists():
    pytest.skip("this machine has no NVIDIA GPU", allow_module_level=True)
cupy = pytest.importorskip("cupy", reason="CuPy is not installed: commsched[cuda]")


@pytest.fixture(scope="module")
def both():
    """Run a function with NumPy, and with CuPy: both results in NumPy."""
    return lambda function: (function(lambda values: values.copy()), here(function(cupy.asarray)))


def here(found):
    """Results on the host."""
    if isinstance(found, (tuple, list)):
        return [here(each) for each in found]
    return found.get() if isinstance(found, cupy.ndarray) else found
