"""Methods of several phases compute NumPy's bits with the CUDA kernels."""

import numpy as np
import pytest

from commsched.kernels.cuda import launch
from tests.cuda_on_cpu import cpu
from tests.test_methods_modules import KERNELS, SHAPES, alike, results


@pytest.mark.parametrize("name", KERNELS)
@cpu.MARKS[0]
@cpu.MARKS[1]
def test_with_the_kernels_the_bits_are_those_of_numpy(name, monkeypatch):
    wanted, used = list(results(name, SHAPES["2x2"], np.copy)), set()
    with cpu.kernels():
        chosen = launch.function
        noted = lambda file, kernel: used.add(kernel) or chosen(file, kernel)  # noqa: E731
        monkeypatch.setattr(launch, "function", noted)
        alike(results(name, SHAPES["2x2"], np.copy), wanted)
    assert used >= KERNELS[name]
