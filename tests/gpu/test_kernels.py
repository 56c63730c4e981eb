"""CUDA kernels compute NumPy's bits on the GPU of this machine."""

import pytest

from tests.gpu.here import needs_a_gpu
from tests.support.cuda_codecs import *  # noqa: F403, the same tests
from tests.support.cuda_kernels import *  # noqa: F403, the same tests

needs_a_gpu()
cupy = pytest.importorskip("cupy")


@pytest.fixture(scope="module")
def both():
    """Run a function with NumPy, and with CuPy: both results in NumPy."""
    return lambda function: (function(lambda values: values.copy()), here(function(cupy.asarray)))


def here(found):
    """Results on the host."""
    if isinstance(found, (tuple, list)):
        return [here(each) for each in found]
    return found.get() if isinstance(found, cupy.ndarray) else found
