"""Run by `mpiexec -n 2 python -m pytest tests/gpu/exchanger.py`: an Exchanger of CuPy arrays."""

import cupy
import pytest

from tests.mpi.test_exchanger_device import METHODS, not_sums, summed
from tests.support.ranks import together
from tests.support.tiny_exchange import make_plan


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("own", [False, True])
def test_cupy_arrays_are_summed_to_the_bits_of_numpy(method, own):
    stream = cupy.cuda.Stream() if own else cupy.cuda.get_current_stream()
    with stream:
        together(not_sums(summed(make_plan(methods=(method,), mean=False), cupy, 3)))
        assert cupy.cuda.get_current_stream() == stream
