"""CUDA kernels compute NumPy's bits: the sources themselves, run on this processor."""

from contextlib import nullcontext

import numpy as np
import pytest

from commsched.kernels.cuda import launch
from tests.cuda_on_cpu import cpu
from tests.support.cuda_codecs import *  # noqa: F403, the same tests
from tests.support.cuda_kernels import *  # noqa: F403, the same tests

pytestmark = cpu.MARKS


@pytest.fixture(scope="module")
def both():
    """Run a function with NumPy, and with the kernels in place of a GPU's."""

    def run(function):
        plain = function(lambda values: values.copy())
        with cpu.kernels():
            return plain, function(lambda values: values.copy())

    return run


@pytest.mark.parametrize(
    ("kernel", "given", "message"),
    [
        ("scan", (np.zeros(3, np.uint32), np.int32(2)), r"takes \*u4 i8 and is given \*u4 i4"),
        ("scam", (), "there is no such kernel"),
    ],
)
def test_a_call_that_does_not_fit_its_kernel_is_noticed(kernel, given, message):
    with cpu.kernels(), pytest.raises(AssertionError, match=message):
        launch.start("select", kernel, 1, *given)


def test_a_kernel_that_writes_beside_an_array_is_noticed():
    with cpu.kernels(), pytest.raises(AssertionError, match="wrote beside an array"):
        launch.start("select", "scan", 1, np.zeros(3, np.uint32), np.int64(3))


REVERSED = """
KERNEL reversed(int *values) {
    __shared__ int held[256];
    held[threadIdx.x] = values[threadIdx.x];
    __syncthreads();
    values[threadIdx.x] = held[255 - threadIdx.x];
}
"""


@pytest.mark.parametrize(
    ("barrier", "message"),
    [
        ("__syncthreads();", ""),
        ("", "Arrays are not equal"),
        ("if (threadIdx.x < 99) __syncthreads();", "threads wait for others that never come"),
        ("if (threadIdx.x < 9) __shfl_xor_sync(~0u, 1, 1);", "wait for others that never come"),
    ],
)
def test_a_barrier_that_is_missing_or_not_for_all_is_noticed(barrier, message):
    code = '#define KERNEL extern "C" void' + REVERSED.replace("__syncthreads();", barrier)
    values = np.arange(256, dtype=np.int32)
    run = cpu.Kernels(cpu.built(code)).get_function("reversed")
    with pytest.raises(AssertionError, match=message) if message else nullcontext():
        run((1,), (256,), (values,))
        np.testing.assert_array_equal(values, np.arange(256)[::-1])
